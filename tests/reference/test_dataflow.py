"""What stages read of each other."""

import pytest

from workbench.case.stages import ALGORITHMS, INPUTS, QUANTISED_INPUTS, STAGES, probe_set
from workbench.reference.attention import table_of
from workbench.reference.dataflow import direct, nearest_dumped, unseen_upstream, upstream

#: zero points and scales of tensors are of some formats of codes alone
EVERY_STAGE = [(algorithm, name) for algorithm in ALGORITHMS for name in table_of(algorithm) if name in STAGES]
TILE_STAGES = ("qk", "scores", "row_max", "correction", "probs", "probs_cast", "row_sum", "acc")
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
    table = table_of(algorithm)
    assert nearest_dumped(table, name, dumped) == nearest
    assert unseen_upstream(table, name, dumped) == unseen


@pytest.mark.parametrize(("algorithm", "name"), EVERY_STAGE)
def test_with_everything_dumped_a_stage_is_judged_from_its_direct_inputs(algorithm, name):
    table = table_of(algorithm)
    stages = [stage for stage in table if table[stage].dumped]
    assert set(nearest_dumped(table, name, stages)) == set(direct(table, name)) - {*INPUTS, "mask"}
    assert unseen_upstream(table, name, stages) == ()


@pytest.mark.parametrize(("algorithm", "name"), EVERY_STAGE)
def test_every_stage_but_out_and_lse_is_read_by_a_later_one(algorithm, name):
    table = table_of(algorithm)
    readers = {stage for stage in table if table[stage].dumped and name in direct(table, stage)} - {name}
    assert bool(readers) == (name not in ("out", "lse"))


def test_what_a_stage_reads_is_what_the_table_says():
    """Parameters stand for the inputs that they are made of; the scale is a number, and no array."""
    flash, capped, codes = table_of("flash"), table_of("flash", numbers=frozenset({"softcap"})), table_of("fp8_split_k")
    assert direct(flash, "qk") == ("q", "k") and direct(codes, "qk") == ("dequant_q", "dequant_k")
    assert direct(flash, "scores") == ("qk", "mask") and direct(capped, "scores") == ("capped", "mask")
    assert direct(capped, "capped") == ("qk",)
    assert direct(flash, "acc") == ("correction", "acc", "probs_cast", "v")
    assert direct(flash, "row_sum") == ("correction", "row_sum", "probs")
    assert direct(table_of("flash", row_sum_of_cast=True), "row_sum") == ("correction", "row_sum", "probs_cast")
    assert direct(codes, "out") == ("merge_weight", "partial_O", "merge_sum")
    assert upstream(flash, "scores") == {"qk", "q_rows", "k_rows", "scale", "visible"}
    assert upstream(flash, "scores", ["qk"]) == {"scale", "visible"}
    # bounds of a sum look at what its rescalings may have been; a state is not its own ancestor
    near = upstream(table_of("flash", row_sum_of_cast=None), "row_sum", near=True)
    assert "probs_cast" in near and "row_sum" not in near
