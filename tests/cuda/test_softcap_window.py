"""Kernels with a softcap and a sliding window, against a dense computation in float64 that is written here."""

import itertools

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, check, run
from workbench.case.stages import ALGORITHMS
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.flash_build import contract
from workbench.cuda.kernels import KERNELS as ALL_KERNELS
from workbench.cuda.plan import resolve
from workbench.floats import to_float64
from workbench.trace.trace import unwritten

KERNELS = ("flash", "split_k")  # those on floats
UNIT = 2.0**-24

#: one build for each kernel and pair of switches
TILES = dict(block_q=16, block_k=16, head_dim=31)
SHAPES = {
    "one query": dict(seqlen_q=1, seqlen_k=50),
    "ragged": dict(seqlen_q=37, seqlen_k=53),
    "more queries": dict(seqlen_q=53, seqlen_k=20),
    "grouped heads": dict(batch=2, heads=6, kv_heads=2, seqlen_q=21, seqlen_k=35),
}
WINDOWS = {"left": (7, 0), "around": (3, 5), "right": (-1, 2), "left only": (4, -1), "diagonal": (0, 0)}


def visible(case):
    """bool [seqlen_q, seqlen_k], one pair at a time."""
    shift = case.seqlen_k - case.seqlen_q if case.causal_alignment == "bottom-right" else 0
    left, right = case.window or (-1, -1)
    found = np.ones((case.seqlen_q, case.seqlen_k), bool)
    for i, j in itertools.product(range(case.seqlen_q), range(case.seqlen_k)):
        if case.causal and j > i + shift:
            found[i, j] = False
        if (left >= 0 and j < i + shift - left) or (right >= 0 and j > i + shift + right):
            found[i, j] = False
    return found


def dense(case):
    """Stage -> its value in float64 and a bound of float32's error in it: of a sum of head_dim products, a rounded
    product, and of a softcap a quotient (whose error tanh does not enlarge), 2.5 ulp of tanh and a product more; exp doubles
    a score's error, and a row's sums add one for each key.
    """
    q, k, v = (to_float64(x) for x in case.inputs())
    k, v = (np.repeat(x, case.heads // case.kv_heads, axis=1) for x in (k, v))
    qk = q @ k.swapaxes(-1, -2)
    scores = qk * case.scale
    off = UNIT * (case.head_dim + 2) * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)) * abs(case.scale)
    found = {}
    if case.softcap is not None:
        off = off + UNIT * np.abs(scores)
        scores = case.softcap * np.tanh(scores / case.softcap)
        off = off + 8 * UNIT * np.abs(scores) + 2.0**-126
        found["capped"] = scores, off
    mask = visible(case)
    found["scores"] = np.where(mask, scores, -np.inf), off
    largest = np.max(found["scores"][0], axis=-1, keepdims=True)
    weights = np.exp(found["scores"][0] - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (largest + np.log(total))[..., 0]
    out = weights @ v / np.where(total > 0, total, 1)
    relative = 2 * np.max(off, axis=-1) + UNIT * (2 * case.seqlen_k + 30)
    half_ulp = {"float32": UNIT, "float16": 2.0**-11, "bfloat16": 2.0**-8}[case.dtype]
    found["out"] = out, relative[..., None] * np.abs(v).max() + half_ulp * np.abs(out) + UNIT
    found["lse"] = lse, relative + UNIT * np.where(np.isfinite(lse), np.abs(lse), 0)
    return found


def assert_right(case, trace):
    for name, (expected, bound) in dense(case).items():
        actual = to_float64(trace.stages[name])
        finite = np.isfinite(expected)
        assert actual.shape == expected.shape and finite.any() and bound.shape == expected.shape
        assert np.array_equal(actual[~finite], expected[~finite]), name
        assert np.all(np.abs(actual[finite] - expected[finite]) <= bound[finite]), name
    empty = ~visible(case).any(axis=1)
    assert np.all(to_float64(trace.stages["out"])[:, :, empty] == 0)


def wrong_stages(case, trace):
    """The stages, in data-flow order, of which an element is off by more than its bound."""
    found = []
    for name, (expected, bound) in dense(case).items():
        actual = to_float64(trace.stages[name])
        with np.errstate(invalid="ignore"):  # -inf - -inf
            right = (actual == expected) | (np.abs(actual - expected) <= bound)
        found += [] if np.all(right) else [name]
    return found


def case_of(**options):
    return Case(**TILES | options)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("alignment", ["bottom-right", "top-left"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_windows(kernel, shape, causal, alignment):
    for window in WINDOWS.values():
        case = case_of(**SHAPES[shape], causal=causal, causal_alignment=alignment, window=window)
        assert_right(case, run(kernel, case, backend="emulator"))


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("alignment", ["bottom-right", "top-left"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_softcaps(kernel, shape, causal, alignment):
    """With one far below the scores, one among them, and one that hardly matters; and with a window, in one build."""
    for softcap, window in [(0.3, (50, 50)), (5.0, (50, 50)), (1e4, (50, 50)), (2.0, (6, 1))]:
        options = dict(causal=causal, causal_alignment=alignment, softcap=softcap, window=window, distribution="large")
        case = case_of(**SHAPES[shape], **options, input_std=0.5)
        trace = run(kernel, case, backend="emulator")
        assert_right(case, trace)
        assert np.all(np.abs(trace.stages["capped"]) <= case.softcap) and trace.stages["capped"].any()


@pytest.mark.campaign
@pytest.mark.parametrize(("kernel", "dtype"), [("flash", "float16"), ("split_k", "bfloat16")])
def test_16_bit_inputs(kernel, dtype):
    case = case_of(dtype=dtype, seqlen_q=33, seqlen_k=40, causal=True, softcap=1.5, window=(9, 0), heads=2)
    assert_right(case, run(kernel, case, backend="emulator"))


def test_the_bounds_tell_other_problems_apart():
    case = case_of(seqlen_q=20, seqlen_k=33, causal=True, softcap=5.0, window=(7, 0))
    trace = run("flash", case, backend="emulator")
    for other in (
        dict(softcap=5.01),
        dict(softcap=None),
        dict(window=(6, 0)),
        dict(window=(8, 0)),
        dict(window=None),
        dict(causal_alignment="top-left"),
    ):
        with pytest.raises(AssertionError):
            assert_right(case.but(**other), trace)


@pytest.mark.campaign
def test_the_shapes_have_rows_without_keys_and_splits_without_visible_ones():
    case = case_of(**SHAPES["more queries"], causal=True, window=(7, 0))
    assert not visible(case).any(axis=1).all() and visible(case).any()
    case = case_of(seqlen_q=1, seqlen_k=100, causal=True, window=(3, 0), splits=3)
    trace = run("split_k", case, backend="emulator")
    assert_right(case, trace)
    assert np.all(np.isneginf(trace.stages["partial_max"][:, :, :2]))
    assert np.all(trace.stages["merge_weight"][:, :, :2] == 0)


@pytest.mark.campaign
@pytest.mark.parametrize("kernel", KERNELS)
def test_probes_leave_the_outputs_alone_and_forget_no_slot(kernel):
    case = case_of(batch=2, heads=4, kv_heads=2, seqlen_q=50, seqlen_k=37, causal=True, softcap=2.0, window=(9, 0))
    plain, probed = (run(kernel, case, probes=probes, backend="emulator") for probes in ("output", "all"))
    assert all(plain.stages[name].tobytes() == probed.stages[name].tobytes() for name in ("out", "lse"))
    assert tuple(probed.stages) == tuple(ALGORITHMS[kernel])
    assert not any(unwritten(stage).any() for stage in probed.stages.values())
    assert "capped" not in run(kernel, case.but(softcap=None), probes="all", backend="emulator").stages


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_window_that_hides_nothing_changes_no_bit(kernel):
    case = case_of(seqlen_q=20, seqlen_k=33, causal=True)
    usual, wide = (run(kernel, x, backend="emulator") for x in (case, case.but(window=(1000, 0))))
    assert all(stage.tobytes() == wide.stages[name].tobytes() for name, stage in usual.stages.items())


@pytest.mark.campaign
def test_a_part_of_a_run_is_that_of_the_whole():
    case = case_of(heads=2, seqlen_q=40, seqlen_k=45, softcap=2.0, window=(9, 3))
    whole = run("flash", case, backend="emulator")
    part = run("flash", case, backend="emulator", where="h=1,q=10:30")
    assert part.stages["capped"].tobytes() == whole.stages["capped"][:, 1:, 10:30].tobytes()
    assert np.array_equal(part.inputs["mask"], visible(case)[10:30])


@pytest.mark.campaign
def test_a_watched_run_finds_nothing():
    case = case_of(heads=2, seqlen_q=20, seqlen_k=37, causal=True, softcap=2.0, window=(9, 0))
    assert check("flash", case).findings == ()


@pytest.mark.parametrize("kernel", KERNELS)
def test_tanh_is_promised_to_be_exact(kernel):
    case = resolve(ALL_KERNELS[kernel], case_of(softcap=2.0))
    assert contract(case).tanh == ALL_KERNELS[kernel].contract(case).tanh == "exact"


@pytest.mark.parametrize(
    ("option", "value"), [pytest.param("softcap", 30.0, id="softcap"), pytest.param("window", (16, 0), id="window")]
)
def test_the_kernel_on_codes_takes_neither(option, value):
    message = f"kernel fp8 takes no {option}; got {value}"
    assert refusal(resolve, ALL_KERNELS["fp8"], Case(**{option: value})) == message


@pytest.mark.campaign
@pytest.mark.parametrize("fault", ["flash-softcap-after-mask", "flash-window-off-by-one"])
def test_a_fault_shows_first_at_its_stage(fault):
    known = CATALOGUE[fault]
    options = dict(seqlen_q=40, seqlen_k=45, heads=2, splits=2 if known.kernel == "split_k" else None)
    case = case_of(**options | known.needs)
    assert wrong_stages(case, run(known.kernel, case, backend="emulator")) == []
    tiles = case.but(block_q=32, block_k=32)  # those on which faults are compiled elsewhere
    faulty = wrong_stages(case, run(known.kernel, tiles, faults=[fault], backend="emulator"))
    assert faulty[0] == known.stages[0] and "out" in faulty


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gpu_is_within_the_same_bounds(kernel, dtype):
    for shape, causal, softcap, window in itertools.product(
        SHAPES.values(), (False, True), (None, 5.0), (None, *WINDOWS.values())
    ):
        case = case_of(**shape, causal=causal, softcap=softcap, window=window, dtype=dtype)
        assert_right(case, run(kernel, case, backend="cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
def test_gpu_probes_do_not_change_a_bit_of_the_output(kernel):
    case = Case(seqlen=200, head_dim=64, dtype="bfloat16", causal=True, heads=2, softcap=5.0, window=(70, 0))
    plain, probed = (run(kernel, case, probes=probes, backend="cuda") for probes in ("output", "all"))
    assert all(plain.stages[name].tobytes() == probed.stages[name].tobytes() for name in ("out", "lse"))
