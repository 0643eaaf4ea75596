"""The kernels on the emulator: what they compute, whatever the shape, the schedule and the probes."""

from functools import partialmethod

import numpy as np
import pytest

from workbench import Case, diff, run
from workbench.case.stages import ALGORITHMS, absent
from workbench.cuda import emulator
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fault import Fault
from workbench.floats import DTYPES
from workbench.trace.trace import unwritten

KERNELS = ("flash", "split_k")  # those on floats
#: stages of a kernel without a softcap; test_softcap_window.py has those with one
STAGES = {kernel: tuple(stage for stage in ALGORITHMS[kernel] if stage not in absent()) for kernel in KERNELS}

#: one of each dtype, with ragged tiles, grouped heads and rows that see no key; every build here serves many tests
CASES = {
    "float32": dict(block_q=16, block_k=16, head_dim=31, seqlen_q=50, seqlen_k=37),
    "float16": dict(block_q=16, block_k=16, head_dim=50, seqlen_q=40, seqlen_k=35),
    "bfloat16": dict(block_q=32, block_k=16, head_dim=32, seqlen_q=40, seqlen_k=39),
}


def case_of(kernel, dtype, **options):
    options = dict(batch=2, heads=4, kv_heads=2, causal=True, dtype=dtype, **CASES[dtype]) | options
    return Case(**options, splits=3 if kernel == "split_k" else None)


def bits(array):
    return array.view(f"u{array.dtype.itemsize}")


def assert_same_bits(actual, expected, names):
    for name in names:
        assert expected.stages[name].size > 0
        np.testing.assert_array_equal(bits(actual.stages[name]), bits(expected.stages[name]), err_msg=name, strict=True)


@pytest.fixture
def fault_of_mine(monkeypatch):
    """fault_of_mine(kernel, before, after, file): the id of a fault that only this test knows."""

    def add(kernel, before, after, file=""):
        fault = Fault("fault-of-a-test", kernel, "made by a test", before, after, file=file)
        monkeypatch.setitem(CATALOGUE, fault.id, fault)
        return [fault.id]

    return add


# ---- probes


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("flash", "float32"),
        pytest.param("split_k", "float32", marks=pytest.mark.campaign),
        *(pytest.param("flash", dtype, marks=pytest.mark.campaign) for dtype in DTYPES if dtype != "float32"),
    ],
)
def test_probes_leave_the_outputs_alone(kernel, dtype):
    case = case_of(kernel, dtype)
    plain = run(kernel, case, probes="output", backend="emulator")
    probed = run(kernel, case, probes="all", backend="emulator")
    assert tuple(plain.stages) == ("out", "lse")
    assert tuple(probed.stages) == STAGES[kernel]
    assert_same_bits(plain, probed, ("out", "lse"))
    for name, stage in probed.stages.items():
        assert not unwritten(stage).any(), name


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("kernel", "before", "after", "origin", "slots"),
    [
        pytest.param(
            "flash",
            "if row < seqlen_q and key < seqlen_k:\n                probe.qk",
            "if row < seqlen_q and key < seqlen_k - 1:\n                probe.qk",
            ("qk", "scores"),
            2 * 4 * 50,
            id="the last key of every row",
        ),
        pytest.param(
            "split_k",
            "        probe.merge_max[b, h, row] = m",
            "        probe.merge_max[b, h, 0] = m",
            ("merge_max",),
            2 * 4 * 49,
            id="every row but the first",
        ),
    ],
)
def test_slots_that_a_probe_forgets_are_missing(fault_of_mine, kernel, before, after, origin, slots):
    judged = diff(
        run(kernel, case_of(kernel, "float32"), faults=fault_of_mine(kernel, before, after), backend="emulator")
    )
    assert judged.origins[: len(origin)] == origin
    assert judged.origin == origin[0]
    for name in origin:
        assert judged[name].verdict == "missing"
        assert judged[name].reason == f"{slots} of {judged.trace.stages[name].size} slots were never written"


def test_probe_that_a_kernel_has_lost_is_missing(fault_of_mine):
    fault = fault_of_mine("split_k", "        probe.merge_sum[b, h, row] = l", "        pass")
    judged = diff(run("split_k", case_of("split_k", "float32"), faults=fault, backend="emulator"))
    assert (judged.verdict, judged.origin) == ("missing", "merge_sum")
    assert judged["merge_sum"].reason == "400 of 400 slots were never written"


@pytest.mark.campaign
def test_partials_of_the_trace_are_what_the_reduce_read(fault_of_mine):
    """What is stored differs from what the kernel holds: a copy by a probe would show the right value, and blame the reduce."""
    stores = (
        "                    partial_O[b, h, split, row, d] = acc[i]\n"
        "                else:\n"
        "                    out[b, h, first_q + row, d] = STORE(acc[i] / l if l != float32(0) else float32(0))\n"
        "        if lane == 0:\n"
        "            if SPLIT:\n"
        "                partial_max[b, h, split, row] = m\n"
        "                partial_sum[b, h, split, row] = l\n"
    )
    changed = stores.replace("= acc[i]", "= acc[i] * 2").replace("= m", "= m + 1").replace("= l\n", "= l * 2\n")
    fault = fault_of_mine("split_k", stores, changed, file="flash.py")
    judged = diff(run("split_k", case_of("split_k", "float32"), faults=fault, backend="emulator"))
    assert judged.origins == ("partial_max", "partial_sum", "partial_O")
    assert {"merge_max", "merge_sum"} <= set(judged.victims)


# ---- schedules


@pytest.mark.parametrize(
    "schedule",
    [
        dict(order="descending"),
        dict(order="shuffle", seed=1),
        dict(order="ascending", skew=True),
        dict(order="descending", skew=True),
        dict(order="shuffle", seed=2, skew=True),
    ],
    ids=lambda schedule: " ".join(f"{key}={value}" for key, value in schedule.items()),
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_order_of_threads_and_blocks_does_not_matter(monkeypatch, kernel, schedule):
    """Barriers are where they are needed: a warp that runs ahead to the next one changes no bit."""
    case = case_of(kernel, "float32")
    usual = run(kernel, case, backend="emulator")
    monkeypatch.setattr(emulator.Emulated, "__call__", partialmethod(emulator.Emulated.__call__, **schedule))
    assert_same_bits(run(kernel, case, backend="emulator"), usual, STAGES[kernel])


@pytest.mark.campaign
def test_missing_barrier_shows_in_some_order(monkeypatch, fault_of_mine):
    """Without this, the orders above might all run alike."""
    fault = fault_of_mine(
        "flash", "cuda.syncthreads()  # s_q and K are complete before any thread reads them", "pass  # no barrier"
    )
    case = case_of("flash", "float32")
    usual = run("flash", case, backend="emulator")
    schedule = dict(order="descending", skew=True)
    monkeypatch.setattr(emulator.Emulated, "__call__", partialmethod(emulator.Emulated.__call__, **schedule))
    racy = run("flash", case, faults=fault, backend="emulator")
    assert not np.array_equal(bits(racy.stages["qk"]), bits(usual.stages["qk"]))


# ---- shapes and masks

FLOAT32_16 = dict(block_q=16, block_k=16)
FLOAT32_64 = dict(block_q=64, block_k=64)
FLOAT32_32 = dict(block_q=32, block_k=32)  # for head_dim above 64
FLOAT16 = dict(block_q=16, block_k=16, dtype="float16")
BFLOAT16 = dict(block_q=32, block_k=16, dtype="bfloat16")

SHAPES = {
    "one query, one key, one dim": dict(**FLOAT32_16, head_dim=1, seqlen=1),
    "one query": dict(**FLOAT32_16, head_dim=3, seqlen_q=1, seqlen_k=50),
    "one query, causal": dict(**FLOAT32_16, head_dim=3, seqlen_q=1, seqlen_k=50, causal=True),
    "one key": dict(**FLOAT32_16, head_dim=3, seqlen_q=50, seqlen_k=1),
    "exact tiles": dict(**FLOAT32_16, head_dim=32, seqlen=64, causal=True),
    "one more than a tile": dict(**FLOAT32_16, head_dim=31, seqlen=17, causal=True),
    "more keys, causal": dict(**FLOAT32_16, head_dim=31, seqlen_q=20, seqlen_k=75, causal=True),
    "more queries, causal": dict(**FLOAT32_16, head_dim=31, seqlen_q=75, seqlen_k=20, causal=True),
    "more keys, top-left": dict(
        **FLOAT32_16, head_dim=31, seqlen_q=20, seqlen_k=75, causal=True, causal_alignment="top-left"
    ),
    "more queries, top-left": dict(
        **FLOAT32_16, head_dim=31, seqlen_q=75, seqlen_k=20, causal=True, causal_alignment="top-left"
    ),
    "grouped heads": dict(**FLOAT32_16, head_dim=9, batch=2, heads=6, kv_heads=2, seqlen_q=21, seqlen_k=35),
    "one kv head": dict(**FLOAT32_16, head_dim=9, batch=3, heads=5, kv_heads=1, seqlen=18, causal=True),
    "negative scale": dict(**FLOAT32_16, head_dim=8, seqlen=33, scale=-0.7),
    "large scores": dict(**FLOAT32_16, head_dim=16, seqlen=40, distribution="large"),
    "head_dim 33": dict(**FLOAT32_64, head_dim=33, seqlen_q=65, seqlen_k=130, causal=True),
    "head_dim 64": dict(**FLOAT32_64, head_dim=64, heads=2, seqlen_q=64, seqlen_k=129),
    "head_dim 65": dict(**FLOAT32_32, head_dim=65, seqlen_q=33, seqlen_k=40, causal=True),
    "head_dim 100": dict(**FLOAT32_32, head_dim=100, heads=2, seqlen=40),
    "head_dim 127": dict(**FLOAT32_32, head_dim=127, seqlen=31),
    "head_dim 128": dict(**FLOAT32_32, head_dim=128, seqlen_q=40, seqlen_k=70, causal=True),
    "float16": dict(**FLOAT16, head_dim=64, heads=2, seqlen_q=33, seqlen_k=70, causal=True),
    "float16, empty rows": dict(**FLOAT16, head_dim=33, seqlen_q=70, seqlen_k=33, causal=True),
    "bfloat16": dict(**BFLOAT16, head_dim=32, heads=2, seqlen_q=33, seqlen_k=70, causal=True),
    "bfloat16, empty rows": dict(**BFLOAT16, head_dim=1, seqlen_q=70, seqlen_k=33, causal=True),
}


def attention(case):
    """out and lse by torch in float64, and how far off float32 arithmetic may be: simple bounds of no other origin.

    A score is a sum of head_dim products and a rounded product more, exp doubles its error, a row's sums add one error
    for each key, and some are left for exp, log and the division; out is then rounded to the case's dtype.
    """
    torch = pytest.importorskip("torch", reason="torch is the second opinion here")
    group = case.heads // case.kv_heads
    q, k, v = (torch.from_numpy(x.astype(np.float64)) for x in case.inputs())
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    mask = torch.from_numpy(case.mask())
    seen = mask.any(dim=1)
    out = torch.zeros_like(q)
    attend = torch.nn.functional.scaled_dot_product_attention
    out[:, :, seen] = attend(q[:, :, seen], k, v, attn_mask=mask[seen], scale=case.scale)
    scores = (q @ k.mT * case.scale).masked_fill(~mask, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)

    unit = 2.0**-24
    score = unit * (case.head_dim + 2) * float((q.abs() @ k.abs().mT).max()) * abs(case.scale)
    relative = 2 * score + unit * (2 * case.seqlen_k + 30)
    half_ulp = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[case.dtype]
    out_bound = relative * float(v.abs().max()) + half_ulp * out.abs().numpy() + 2.0**-24
    lse_bound = relative + unit * np.abs(np.nan_to_num(lse.numpy(), neginf=0))
    return out.numpy(), out_bound, lse.numpy(), lse_bound


def assert_right(case, trace):
    out, out_bound, lse, lse_bound = attention(case)
    actual = trace.stages["out"].astype(np.float64)
    assert actual.shape == out.shape and actual.size > 0
    assert np.all(np.abs(actual - out) <= out_bound)
    empty = np.isneginf(lse)
    assert np.all(np.isneginf(trace.stages["lse"][empty]))
    assert np.all(np.abs(trace.stages["lse"][~empty] - lse[~empty]) <= lse_bound[~empty])
    assert np.all(bits(trace.stages["out"])[empty] == 0)  # +0, not merely something small
    assert np.array_equal(empty, np.broadcast_to(~case.mask().any(axis=1), lse.shape))


def in_a_campaign(kernel, shape):
    """Of split_k those of builds of their own, as it has the loops of flash; of flash one of the two float32 ones."""
    tiles = {name: SHAPES[shape].get(name) for name in ("block_q", "block_k", "dtype")}
    own = (FLOAT32_64, FLOAT32_32, BFLOAT16, FLOAT16) if kernel == "split_k" else (FLOAT32_64,)
    return any(tiles == {"dtype": None} | one for one in own)


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        pytest.param(kernel, shape, marks=pytest.mark.campaign if in_a_campaign(kernel, shape) else ())
        for kernel in KERNELS
        for shape in SHAPES
    ],
)
def test_against_torch_and_the_reference(kernel, shape):
    case = Case(**SHAPES[shape])
    trace = run(kernel, case, backend="emulator")
    assert_right(case, trace)
    judged = diff(trace)
    assert judged.verdict in ("exact", "rounding"), judged.origins
    assert [stage.name for stage in judged] == list(STAGES[kernel])
    assert judged.victims == () and judged.not_judged == ()


def test_some_shapes_have_rows_without_keys():
    empty = {name for name, options in SHAPES.items() if not Case(**options).mask().any(axis=1).all()}
    assert empty == {"more queries, causal", "float16, empty rows", "bfloat16, empty rows"}


@pytest.mark.parametrize("shape", ["more keys, causal", "float16", "bfloat16"])
def test_bounds_tell_another_problem_apart(shape):
    """The next seed, the other alignment and a scale one percent off are all far outside."""
    case = Case(**SHAPES[shape])
    trace = run("flash", case, backend="emulator")
    others = (case.but(seed=1), case.but(causal_alignment="top-left"), case.but(scale=1.01 * case.scale))
    for other in others:
        with pytest.raises(AssertionError):
            assert_right(other, trace)


@pytest.mark.parametrize("splits", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_splits_of_any_number(splits, causal):
    """Four tiles of keys: splits of several tiles, of one, of a ragged last one, and without any."""
    case = Case(**FLOAT32_16, head_dim=31, heads=2, seqlen_q=18, seqlen_k=53, causal=causal, splits=splits)
    trace = run("split_k", case, backend="emulator")
    assert_right(case, trace)
    assert diff(trace).verdict == "rounding"
    tiles_of = -(-4 // splits)
    for split in range(splits):
        without = split * tiles_of >= 4
        partials = (trace.stages[name][:, :, split] for name in ("partial_max", "partial_sum", "partial_O"))
        for partial, value in zip(partials, (-np.inf, 0, 0), strict=True):
            assert np.all(partial == value) == without
    assert splits <= 4 or np.all(trace.stages["merge_weight"][:, :, 4:] == 0)


def test_one_split_is_flash():
    """Whose arithmetic is then the same but for the last division, which the reduce makes after a weight of 1."""
    case = Case(**FLOAT32_16, head_dim=31, heads=2, seqlen_q=20, seqlen_k=75, causal=True)
    flash, split = (run(kernel, case, backend="emulator") for kernel in ("flash", "split_k"))
    single = run("split_k", case.but(splits=1), backend="emulator")
    tiles = [name for name in STAGES["flash"] if name in STAGES["split_k"]]
    assert_same_bits(single, flash, tiles)
    assert not np.array_equal(bits(split.stages["acc"]), bits(flash.stages["acc"]))
