import pytest

from workbench.case.case import Case
from workbench.case.stages import (
    ALGORITHMS,
    AXIS_NAMES,
    INPUTS,
    PROBE_SETS,
    QUANTISED_INPUTS,
    nearest_dumped,
    probe_set,
    shape,
    unseen_upstream,
)
from workbench.refusal import Refusal

EVERY_STAGE = [(algorithm, name) for algorithm, stages in ALGORITHMS.items() for name in stages]
TILE_STAGES = ("qk", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc")


@pytest.mark.parametrize(("algorithm", "name"), EVERY_STAGE)
def test_axes_are_known_letters_used_once(algorithm, name):
    axes = ALGORITHMS[algorithm][name].axes
    assert set(axes) <= set(AXIS_NAMES) and len(set(axes)) == len(axes)
    assert axes.startswith("bh") or name.startswith(("scale_", "lut_"))


@pytest.mark.parametrize(("algorithm", "name"), EVERY_STAGE)
def test_a_stage_reads_inputs_earlier_stages_or_its_own_state(algorithm, name):
    stages = ALGORITHMS[algorithm]
    order = list(stages)
    assert stages[name].name == name and stages[name].reads
    for parent in stages[name].reads:
        assert parent in INPUTS or order.index(parent) <= order.index(name)
        assert parent != name or "t" in stages[name].axes  # only what runs over tiles has a previous state


@pytest.mark.parametrize(("algorithm", "name"), EVERY_STAGE)
def test_every_stage_but_out_and_lse_is_read_by_a_later_one(algorithm, name):
    readers = {stage.name for stage in ALGORITHMS[algorithm].values() if name in stage.reads} - {name}
    assert bool(readers) == (name not in ("out", "lse"))


def test_the_algorithms_share_their_tile_stages():
    flash, split_k = ALGORITHMS["flash"], ALGORITHMS["split_k"]
    assert tuple(flash) == (*TILE_STAGES, "out", "lse")
    quantised = [
        f"{stage}_{x}" for stage in ("scale", "codes", "lut", "dequant") for x in "qkv" if (stage, x) != ("lut", "q")
    ]
    assert tuple(ALGORITHMS["fp8"]) == (*quantised, *flash)
    merged = ("partial_max", "partial_sum", "partial_O", "merge_max", "merge_weight", "merge_sum")
    assert tuple(split_k) == (*TILE_STAGES, *merged, "out", "lse")
    assert all(flash[name] == split_k[name] for name in TILE_STAGES)
    assert [name for name in flash if flash[name] != ALGORITHMS["fp8"][name]] == ["qk", "acc"]


def test_probe_sets_hold_known_stages_in_data_flow_order():
    known = {name for _, name in EVERY_STAGE}
    assert set(PROBE_SETS["all"]) == known
    assert all(set(names) <= known for names in PROBE_SETS.values())
    assert probe_set("flash", "lean") == ("scores", "row_max", "row_sum", "acc", "out", "lse")
    assert probe_set("split_k", "output") == ("out", "lse")
    assert probe_set("split_k", "all") == tuple(ALGORITHMS["split_k"])
    assert probe_set("fp8", "output") == (*QUANTISED_INPUTS, "out", "lse")
    assert probe_set("fp8", "lean") == (*QUANTISED_INPUTS, "scores", "row_max", "row_sum", "acc", "out", "lse")
    assert probe_set("split_k", "acc, out,qk") == ("qk", "acc", "out")
    assert probe_set("fp8", "acc") == (*QUANTISED_INPUTS, "acc")
    with pytest.raises(Refusal) as refused:
        probe_set("flash", "acc,some")
    assert str(refused.value) == (
        "probes is one of all, lean, output, or some of the stages qk, scores, row_max, correction, probs, probs_cast, "
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


PARTIALS = ("partial_max", "partial_sum", "partial_O")
LEAN_FLASH = probe_set("flash", "lean")
LEAN_SPLIT_K = probe_set("split_k", "lean")


@pytest.mark.parametrize(
    ("algorithm", "name", "dumped", "nearest", "unseen"),
    [
        # a foreign split-K kernel that gives its workspace and its output: the reduce alone stands between
        ("split_k", "out", (*PARTIALS, "out"), PARTIALS, ("merge_max", "merge_weight", "merge_sum")),
        ("split_k", "lse", (*PARTIALS, "lse"), ("partial_max", "partial_sum"), ("merge_max", "merge_sum")),
        ("split_k", "merge_sum", (*PARTIALS, "merge_sum"), ("partial_max", "partial_sum"), ("merge_max",)),
        # one of the reduce's own stages is known: it takes the place of what lies behind it
        (
            "split_k",
            "out",
            (*PARTIALS, "merge_sum"),
            ("partial_max", "partial_O", "merge_sum"),
            ("merge_max", "merge_weight"),
        ),
        # nothing but the output: end to end
        ("flash", "out", ("out", "lse"), (), TILE_STAGES),
        ("flash", "lse", ("out", "lse"), (), ("qk", "scores", "row_max", "correction", "probs", "row_sum")),
        ("split_k", "partial_max", PARTIALS, (), ("qk", "scores", "row_max")),
        # the lean set leaves out qk, correction and both probs
        ("flash", "scores", LEAN_FLASH, (), ("qk",)),
        ("flash", "row_max", LEAN_FLASH, ("scores", "row_max"), ()),
        ("flash", "row_sum", LEAN_FLASH, ("scores", "row_max", "row_sum"), ("correction", "probs")),
        ("flash", "acc", LEAN_FLASH, ("scores", "row_max", "acc"), ("correction", "probs", "probs_cast")),
        ("flash", "out", LEAN_FLASH, ("row_sum", "acc"), ()),
        ("split_k", "out", LEAN_SPLIT_K, PARTIALS, ("merge_max", "merge_weight", "merge_sum")),
        # everything dumped: the direct inputs, its own previous state among them
        ("flash", "acc", tuple(ALGORITHMS["flash"]), ("correction", "probs_cast", "acc"), ()),
        ("flash", "qk", tuple(ALGORITHMS["flash"]), (), ()),
        # a quantised kernel whose table nobody saw, and one that gives only its decoded V
        ("fp8", "dequant_k", (*QUANTISED_INPUTS, "dequant_k"), ("scale_k", "codes_k"), ("lut_k",)),
        (
            "fp8",
            "acc",
            ("probs_cast", "correction", "acc", "dequant_v"),
            ("dequant_v", "correction", "probs_cast", "acc"),
            (),
        ),
        # a state that was not dumped itself is recomputed from its first tile on
        ("flash", "row_sum", ("scores",), ("scores",), ("row_max", "correction", "probs")),
    ],
)
def test_nearest_dumped_and_unseen_upstream(algorithm, name, dumped, nearest, unseen):
    assert nearest_dumped(algorithm, name, dumped) == nearest
    assert unseen_upstream(algorithm, name, dumped) == unseen


@pytest.mark.parametrize(("algorithm", "name"), EVERY_STAGE)
def test_with_everything_dumped_a_stage_is_judged_from_its_direct_inputs(algorithm, name):
    stages = ALGORITHMS[algorithm]
    assert set(nearest_dumped(algorithm, name, stages)) == set(stages[name].reads) - set(INPUTS)
    assert unseen_upstream(algorithm, name, stages) == ()
