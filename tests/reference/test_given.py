"""What replacing a stage changes: exactly the stages that read it, as the table says."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.case.case import Case
from workbench.case.stages import ALGORITHMS, PROBE_SETS, absent, shape
from workbench.reference.attention import table_of
from workbench.reference.dataflow import direct
from workbench.reference.forward import PLAIN
from workbench.reference.forward import forward as reference_forward
from workbench.reference.problem import Codes
from workbench.refusal import Refusal

pytestmark = pytest.mark.filterwarnings("error")

# more queries than keys: the first rows see no key; 4 tiles, the last ragged, in splits of 2, 2 and 0
CASE = Case(heads=2, kv_heads=1, seqlen_q=9, seqlen_k=7, head_dim=3, causal=True, block_k=2, splits=3)
SOFTCAP = 2.0
#: every algorithm, and some with a softcap, with its stages; codes that share scales in blocks have others in each
#: format, and attend to their rows as these do (test_codes.py, tests/cuda/test_fp8_blocks.py)
RUNS = {
    f"{algorithm}{' capped' if softcap else ''}": {
        name: stage
        for name, stage in stages.items()
        if name not in absent(decode="table", numbers=() if softcap is None else {"softcap"})
    }
    for algorithm, stages in ALGORITHMS.items()
    if not algorithm.startswith("block_scaled")
    for softcap in ((None, SOFTCAP) if algorithm in ("flash", "fp8_split_k") else (None,))
}
EVERY_STAGE = [(run, name) for run, stages in RUNS.items() for name in stages]


def forward(run, given=None, inputs=None):
    algorithm, _, capped = run.partition(" ")
    q, k, v = inputs or CASE.inputs()
    contract = replace(PLAIN, block_k=CASE.block_k, splits=CASE.splits if "split_k" in run else None)
    options = dict(softcap=SOFTCAP if capped else None, codes=Codes("simulated") if "fp8" in run else None)
    return reference_forward(
        algorithm, q, k, v, scale=CASE.scale, mask=CASE.mask(), contract=contract, given=given or {}, **options
    )


def perturbed(array, name=""):
    """`array` with another number in every finite place, each moved by its own amount; codes stay codes."""
    if name.startswith("codes"):
        return (array + 100) % 256
    return array + np.random.default_rng(0).uniform(0.5, 1, array.shape)


def changed(before, after):
    """Names of the stages whose arrays differ in any bit."""
    assert list(before) == list(after)
    return {name for name in before if not np.array_equal(before[name], after[name], equal_nan=True)}


def readers(run, name, replaced):
    """Stages that see `name` directly, or through computed stages, those not in `replaced`."""
    algorithm, _, capped = run.partition(" ")
    table = table_of(algorithm, numbers=frozenset({"softcap"} if capped else ()))
    found: set[str] = set()
    sources = {name}
    for stage in RUNS[run]:  # in data-flow order: one pass is enough
        if sources & set(direct(table, stage)):
            found.add(stage)
            if stage not in replaced:
                sources.add(stage)
    return found


@pytest.mark.parametrize("run", RUNS)
def test_the_stages_come_in_order_with_the_shapes_of_the_vocabulary(run):
    trace = forward(run)
    assert list(trace) == list(RUNS[run])
    for name, stage in RUNS[run].items():
        assert trace[name].shape == shape(stage, CASE.sizes) and trace[name].dtype == np.float64
        assert not np.any(np.isnan(trace[name]))


@pytest.mark.parametrize("run", RUNS)
def test_its_own_trace_given_back_changes_nothing(run):
    trace = forward(run)
    assert changed(trace, forward(run, given=trace)) == set()


@pytest.mark.campaign(every=4)
@pytest.mark.parametrize("others", ["nothing", "everything", "lean"])
@pytest.mark.parametrize(("run", "name"), EVERY_STAGE)
def test_a_replaced_stage_changes_its_readers_only(run, name, others):
    before = forward(run)
    names = {"nothing": (), "everything": tuple(before), "lean": PROBE_SETS["lean"]}[others]
    substitutes = {other: before[other] for other in names if other in before} | {name: perturbed(before[name], name)}
    expected = readers(run, name, set(substitutes))
    assert changed(before, forward(run, given=substitutes)) == expected
    assert bool(expected) == (name not in ("out", "lse"))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_set_of_replaced_stages(data):
    run, name = data.draw(st.sampled_from(EVERY_STAGE))
    before = forward(run)
    others = data.draw(st.sets(st.sampled_from(list(before))))
    substitutes = {other: before[other] for other in others} | {name: perturbed(before[name], name)}
    assert changed(before, forward(run, given=substitutes)) == readers(run, name, set(substitutes))


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("run", RUNS)
def test_a_nan_in_any_slot_is_read_by_someone(run):
    trace = forward(run)
    slots = 0
    for name in trace:
        if name in ("out", "lse") or name.startswith(("codes", "lut")):
            continue  # codes are whole numbers, and not every entry of a table is looked up
        for index in np.ndindex(trace[name].shape):
            if name == ("capped" if "capped" in trace else "qk") and not CASE.mask()[index[2:]]:
                continue  # a masked score is -inf by definition and reads nothing
            broken = trace[name].copy()
            broken[index] = np.nan
            after = forward(run, given=trace | {name: broken})
            assert any(np.any(np.isnan(array)) for array in after.values()), (name, index)
            slots += 1
    assert slots > 500


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_nan_in_the_inputs_reaches_the_output(run, name):
    inputs = {n: x.astype(np.float64) for n, x in zip("qkv", CASE.inputs(), strict=True)}
    inputs[name][0, 0, 3, 1] = np.nan  # query 3 and key 3 see others, and are seen
    out = forward(run, inputs=tuple(inputs.values()))["out"]
    assert np.any(np.isnan(out))


@pytest.mark.parametrize("run", RUNS)
def test_a_whole_trace_of_unrelated_numbers_is_read_stage_by_stage(run):
    rng = np.random.default_rng(3)
    x = {name: rng.uniform(1, 2, shape(stage, CASE.sizes)) for name, stage in RUNS[run].items()}
    x |= {name: rng.integers(0, 256, array.shape) for name, array in x.items() if name.startswith("codes")}
    y = forward(run, given=x)
    tile = np.arange(CASE.seqlen_k) // CASE.block_k
    first = [0, 2] if "split_k" in run else [0]
    before = {name: np.roll(x[name], 1, axis=3) for name in ("row_max", "row_sum", "acc")}  # the state before each tile
    for name, initial in (("row_max", -np.inf), ("row_sum", 0.0), ("acc", 0.0)):
        before[name][:, :, :, first] = initial
    in_tile = [x["probs"][..., tile == t].sum(axis=-1) for t in range(4)]
    inputs = {name: array.astype(np.float64) for name, array in zip("qkv", CASE.inputs(), strict=True)}
    v = x.get("dequant_v", inputs["v"])
    product = [x["probs_cast"][..., tile == t] @ v[:, :, tile == t] for t in range(4)]
    highest = np.stack([x["scores"][..., tile == t].max(axis=-1) for t in range(4)], axis=3)
    expected = {
        "scores": np.where(CASE.mask(), x.get("capped", x["qk"] * CASE.scale), -np.inf),
        "row_max": np.maximum(before["row_max"], highest),
        "correction": np.exp(before["row_max"] - x["row_max"]),
        "probs": np.exp(x["scores"] - x["row_max"][..., tile]),
        "probs_cast": x["probs"],
        "row_sum": x["correction"] * before["row_sum"] + np.stack(in_tile, axis=3),
        "acc": x["correction"][..., None] * before["acc"] + np.stack(product, axis=3),
    }
    if "capped" in x:
        expected["capped"] = SOFTCAP * np.tanh(x["qk"] * CASE.scale / SOFTCAP)
    if "fp8" in run:
        expected["qk"] = x["dequant_q"] @ np.repeat(x["dequant_k"], 2, axis=1).swapaxes(-1, -2)
        for name, array in inputs.items():
            scale = x[f"scale_{name}"]
            expected[f"scale_{name}"] = np.abs(array).max(axis=(0, 2, 3)) / 448
            expected[f"codes_{name}"] = 128 + np.clip(np.rint(array / scale[:, None, None] / 448 * 127), -127, 127)
            lut = (np.arange(256) - 128) / 127 * 448 * scale[:, None]
            if name != "q":
                expected[f"lut_{name}"], lut = lut, x[f"lut_{name}"]
            codes = x[f"codes_{name}"]
            expected[f"dequant_{name}"] = np.stack([lut[h][codes[:, h]] for h in range(len(lut))], axis=1)
    if "split_k" not in run:
        expected["out"] = x["acc"][..., -1, :] / x["row_sum"][..., -1:]
        expected["lse"] = x["row_max"][..., -1] + np.log(x["row_sum"][..., -1])
    else:
        for partial, state, initial in (("max", "row_max", -np.inf), ("sum", "row_sum", 0.0), ("O", "acc", 0.0)):
            last = np.moveaxis(x[state][:, :, :, [1, 3, 3]], 3, 2)
            last[:, :, 2] = initial  # the third split has no tile
            expected[f"partial_{partial}"] = last
        weights = np.exp(x["partial_max"] - x["merge_max"][:, :, None])
        expected["merge_max"] = x["partial_max"].max(axis=2)
        expected["merge_weight"] = weights
        expected["merge_sum"] = (weights * x["partial_sum"]).sum(axis=2)
        merged = (x["merge_weight"][..., None] * x["partial_O"]).sum(axis=2)
        expected["out"] = merged / x["merge_sum"][..., None]
        expected["lse"] = x["merge_max"] + np.log(x["merge_sum"])
    assert set(expected) | {"qk"} == set(y)
    for name, array in expected.items():
        # sums of at most 7 numbers below 10, each in two orders with 7 roundings of up to 70, and 4 roundings of the rest
        off = dict(rtol=4 * 2.0**-52, atol=2 * 7 * 70 * 2.0**-53)
        np.testing.assert_allclose(y[name], array, **off, equal_nan=False, err_msg=name)


def test_the_previous_state_of_a_tile_is_the_given_one():
    before = forward("flash")
    row_max = before["row_max"].copy()
    row_max[..., 0] = 100.0  # far above every score
    after = forward("flash", given={"row_max": row_max})
    assert np.all(after["row_max"][..., 0] == before["row_max"][..., 0])  # computed from its own inputs
    assert np.all(after["row_max"][..., 1] == 100.0)  # the next tile's previous state
    assert np.array_equal(after["row_max"][..., 2], before["row_max"][..., 2])  # previous: the given tile 1


def test_given_partials_decide_the_merge_whatever_the_inputs_are():
    trace = forward("split_k")
    partials = {name: trace[name] for name in ("partial_max", "partial_sum", "partial_O")}
    zeros = tuple(np.zeros_like(x) for x in CASE.inputs())
    other = forward("split_k", given=partials, inputs=zeros)
    assert np.array_equal(other["out"], trace["out"]) and np.array_equal(other["lse"], trace["lse"])
    assert not np.array_equal(forward("split_k", inputs=zeros)["out"], trace["out"])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_given_arrays_may_have_any_float_dtype(dtype):
    row_sum = (perturbed(forward("flash")["row_sum"]) + 1).astype(dtype)
    narrow, wide = (forward("flash", given={"row_sum": x}) for x in (row_sum, row_sum.astype(np.float64)))
    assert changed(narrow, wide) == set() and narrow["out"].dtype == np.float64


def test_given_is_neither_written_nor_returned():
    trace = forward("split_k")
    for array in trace.values():
        array.setflags(write=False)
    after = forward("split_k", given=trace)
    assert not any(np.shares_memory(after[name], given_array) for name in after for given_array in trace.values())


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        (
            "flash",
            {"partial_max": np.zeros(1)},
            "given takes stages of flash: qk, capped, scores, row_max, correction, probs, probs_cast, row_sum, acc, out, lse; "
            "got 'partial_max'",
        ),
        (
            "flash",
            {"row_max": np.zeros((1, 2, 9, 1))},
            "given row_max must have shape (1, 2, 9, 4) (b=1, h=2, q=9, t=4); got (1, 2, 9, 1)",
        ),
        (
            "fp8",
            {"lut_k": np.zeros((2, 256))},
            "given lut_k must have shape (1, 256) (h=1, c=256); got (2, 256)",
        ),
        (
            "split_k",
            {"partial_O": np.zeros((1, 2, 9, 3, 3))},
            "given partial_O must have shape (1, 2, 3, 9, 3) (b=1, h=2, s=3, q=9, d=3); got (1, 2, 9, 3, 3)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(algorithm, given, message):
    with pytest.raises(Refusal) as refused:
        forward(algorithm, given=given)
    assert str(refused.value) == message
