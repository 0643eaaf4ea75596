import pytest

from workbench.case.case import Case
from workbench.case.stages import (
    ALGORITHMS,
    AXIS_NAMES,
    PROBE_SETS,
    QUANTISED_INPUTS,
    STAGES,
    absent,
    algorithm_of,
    before_attention,
    probe_set,
    scaled,
    shape,
    stage_of,
    stages_of,
)
from workbench.refusal import Refusal

EVERY_STAGE = [(algorithm, name) for algorithm, stages in ALGORITHMS.items() for name in stages]
TILE_STAGES = ("qk", "capped", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc")


@pytest.mark.parametrize(("algorithm", "name"), EVERY_STAGE)
def test_axes_are_known_letters_used_once(algorithm, name):
    axes = ALGORITHMS[algorithm][name].axes
    assert set(axes) <= set(AXIS_NAMES) and len(set(axes)) == len(axes)
    assert axes.startswith("bh") or name.startswith(("scale_", "global_", "lut_"))


def test_the_algorithms_share_their_tile_stages():
    flash, split_k = ALGORITHMS["flash"], ALGORITHMS["split_k"]
    assert tuple(flash) == (*TILE_STAGES, "out", "lse")
    quantised = [
        f"{stage}_{x}" for stage in ("scale", "codes", "lut", "dequant") for x in "qkv" if (stage, x) != ("lut", "q")
    ]
    assert tuple(ALGORITHMS["fp8"]) == (*quantised, *flash)
    assert before_attention("fp8") == before_attention("fp8_split_k") == tuple(quantised)
    assert before_attention("flash") == before_attention("split_k") == ()
    merged = ("partial_max", "partial_sum", "partial_O", "merge_max", "merge_weight", "merge_sum")
    assert tuple(split_k) == (*TILE_STAGES, *merged, "out", "lse")
    assert tuple(ALGORITHMS["fp8_split_k"]) == (*quantised, *split_k)
    of_blocks = ("scale_q", "scale_k", "scale_v")
    for algorithm, stages in ALGORITHMS.items():
        kept = [name for name in stages if not algorithm.startswith("block") or name not in of_blocks]
        assert {name: stages[name] for name in kept} == {name: STAGES[name] for name in kept}, algorithm
    assert [ALGORITHMS["block_scaled"][name].axes for name in of_blocks] == ["bhqg", "bhkg", "bhkg"]
    beside = [f"{kind}_{x}" for kind in ("global", "zero") for x in "qkv"]
    assert {*STAGES} == {*ALGORITHMS["fp8_split_k"], *beside}
    assert [name for name in STAGES if name not in beside] == list(ALGORITHMS["fp8_split_k"])
    coded = [name for name in quantised if name.startswith(("codes", "dequant"))]
    of_scales = [f"{kind}_{x}" for kind in ("global", "scale", "zero") for x in "qkv"]
    assert before_attention("block_scaled") == before_attention("block_scaled_split_k") == (*of_scales, *coded)


def test_stages_that_a_kernel_does_not_have():
    assert absent(decode="table") == absent() == {"capped"}
    assert absent(decode="direct", numbers={"softcap"}) == {"lut_k", "lut_v"}
    assert absent(decode="direct") == {"capped", "lut_k", "lut_v"}
    assert absent(decode="table", numbers={"softcap"}) == set()
    assert absent(numbers={"softcap"}, kinds=("scale", "zero")) == {"global_q", "global_k", "global_v"}


def test_the_stages_of_a_kernel_are_those_of_its_softcap():
    for algorithm, stages in ALGORITHMS.items():
        assert list(stages_of(algorithm, {"softcap"})) == list(stages)
        assert list(stages_of(algorithm)) == [name for name in stages if name != "capped"]
    assert stage_of("flash", "capped", "mine", {"softcap"}) == STAGES["capped"]
    with pytest.raises(Refusal) as refused:
        stage_of("flash", "capped", "mine")
    assert str(refused.value) == (
        "mine has no stage 'capped'; its stages: qk, scores, row_max, correction, probs, probs_cast, row_sum, acc, out, lse"
    )


@pytest.mark.parametrize(
    ("names", "codes", "splits", "expected"),
    [
        (["out"], False, False, "flash"),
        (["out"], False, True, "split_k"),
        (["partial_O", "out"], False, False, "split_k"),
        (["out"], True, False, "fp8"),
        (["out"], True, True, "fp8_split_k"),
        (["codes_q", "out"], False, False, "fp8"),  # of codes in a format that nobody told
        (["codes_q", "partial_O"], False, False, "fp8_split_k"),
        (["dequant_v", "merge_sum", "out"], True, False, "fp8_split_k"),
        (["lut_k", "row_max"], False, True, "fp8_split_k"),
        ([], False, False, "flash"),
        (["zero_k", "out"], True, False, "block_scaled"),
        (["zero_k", "out"], True, True, "block_scaled_split_k"),
    ],
)
def test_the_algorithm_is_told_by_the_stages(names, codes, splits, expected):
    assert algorithm_of(names, codes=codes, splits=splits) == expected


@pytest.mark.parametrize("scale_of", ["token", "block", "tile", "head", None])
def test_the_algorithm_is_told_by_what_has_a_scale(scale_of):
    blocks = scale_of in ("token", "block", "tile")
    assert algorithm_of(["out"], codes=True, scale_of=scale_of) == ("block_scaled" if blocks else "fp8")
    assert scaled("fp8_split_k", scale_of) == ("block_scaled_split_k" if blocks else "fp8_split_k")
    assert scaled("flash", scale_of) == algorithm_of(["out"], codes=False, scale_of=scale_of) == "flash"


def test_probe_sets_hold_known_stages_in_data_flow_order():
    known = {name for _, name in EVERY_STAGE}
    assert set(PROBE_SETS["all"]) == known
    assert all(set(names) <= known for names in PROBE_SETS.values())
    assert probe_set("flash", "lean") == ("scores", "row_max", "row_sum", "acc", "out", "lse")
    assert probe_set("split_k", "output") == ("out", "lse")
    assert probe_set("split_k", "all") == tuple(stages_of("split_k"))
    assert probe_set("split_k", "all", {"softcap"}) == tuple(ALGORITHMS["split_k"])
    assert probe_set("flash", "capped,out", {"softcap"}) == ("capped", "out")
    assert "capped" not in probe_set("flash", "lean", {"softcap"})
    assert probe_set("fp8", "output") == (*QUANTISED_INPUTS, "out", "lse")
    assert probe_set("fp8", "lean") == (*QUANTISED_INPUTS, "scores", "row_max", "row_sum", "acc", "out", "lse")
    assert probe_set("split_k", "acc, out,qk") == ("qk", "acc", "out")
    assert probe_set("fp8", "acc") == (*QUANTISED_INPUTS, "acc")
    with pytest.raises(Refusal) as refused:
        probe_set("flash", "acc,some")
    assert str(refused.value) == (
        "probes must be one of all, lean, output, or some of the stages qk, scores, row_max, correction, probs, probs_cast, "
        "row_sum, acc, out, lse; got 'acc,some'"
    )


def test_shape_of_a_stage():
    sizes = Case(batch=2, heads=4, kv_heads=2, seqlen_q=3, seqlen_k=70, head_dim=8, block_k=16, splits=3).sizes
    assert shape(ALGORITHMS["split_k"]["acc"], sizes) == (2, 4, 3, 5, 8)
    assert shape(ALGORITHMS["split_k"]["partial_O"], sizes) == (2, 4, 3, 3, 8)
    assert shape(ALGORITHMS["flash"]["scores"], sizes) == (2, 4, 3, 70)
    assert shape(ALGORITHMS["flash"]["lse"], sizes) == (2, 4, 3)
    assert shape(ALGORITHMS["fp8"]["scale_q"], sizes) == (4,) and shape(ALGORITHMS["fp8"]["scale_k"], sizes) == (2,)
    assert shape(ALGORITHMS["fp8"]["codes_q"], sizes) == (2, 4, 3, 8)
    assert shape(ALGORITHMS["fp8"]["dequant_v"], sizes) == (2, 2, 70, 8)
    assert shape(ALGORITHMS["fp8"]["lut_v"], sizes) == (2, 256)
