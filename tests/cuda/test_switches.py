"""Kernels with masks, sinks, ALiBi, dropout, sequences of any length, pages and other widths, against a computation in
float64 that is written here, one row of one head at a time.
"""

import math

import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, check, diff, run
from workbench.case.memory import POISONS, poison_of
from workbench.cuda.flash_build import SWITCHES, constants
from workbench.cuda.fp8_build import NOT_TAKEN
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve
from workbench.floats import to_float64

UNIT = 2.0**-24
TILES = dict(block_q=16, block_k=16, head_dim=31)

#: one build each
RAGGED = dict(**TILES, heads=4, kv_heads=2, head_dim_v=20, seqlens_q=(5, 0, 33, 1), seqlens_k=(40, 17, 20, 0))
ADDED = dict(
    **TILES, batch=2, heads=4, kv_heads=2, seqlen_q=21, seqlen_k=37,
    **dict(alibi_slopes="geometric", sinks=(0.5, -2.0, 3.0, 60.0), dropout_p=0.3),
)  # fmt: skip
DECODE = dict(**TILES, heads=8, kv_heads=1, seqlen_q=1, seqlens_k=(1, 63, 64, 200), page_size=16, pack_gqa=True)
MLA = dict(
    block_q=16, block_k=16, heads=3, kv_heads=1, head_dim=576, head_dim_v=512, shared_kv=True, scale=192**-0.5,
    **dict(seqlens_q=(2, 9), seqlens_k=(20, 33)),
)  # fmt: skip

ALL = dict(
    **TILES, heads=4, kv_heads=2, head_dim_v=20, seqlens_q=(5, 0, 33, 1), seqlens_k=(40, 17, 60, 0), page_size=16,
    **dict(sinks="normal", alibi_slopes="geometric", dropout_p=0.3, window=(30, 2), pack_gqa=True),
)  # fmt: skip


def inputs_of(case, seed=0):
    """The case's own inputs, with a mask and a bias that are the same along some axes."""
    random = np.random.default_rng(seed)
    mask = random.random((case.batch, 1, case.seqlen_q, case.seqlen_k)) < 0.8
    bias = random.standard_normal((1, case.heads, 1, case.seqlen_k), np.float32)
    drawn = dict(zip("qkv", case.inputs(), strict=True))
    kept = {} if case.dropout_p is None else {"dropout_mask": case.dropout_mask()}
    return {**drawn, **kept, "mask": mask, "bias": bias}


def row_of(case, given, b, h, i):
    """out and lse of a row, and bounds of float32's error in them; None where there is no such row."""
    q, k, v = (to_float64(given[x]) for x in "qkv")
    lengths_q = case.seqlens_q or [case.seqlen_q] * case.batch
    lengths_k = case.seqlens_k or [case.seqlen_k] * case.batch
    if i >= lengths_q[b]:
        return None
    kv_h, keys = h // (case.heads // case.kv_heads), range(lengths_k[b])
    shift = lengths_k[b] - lengths_q[b] if case.causal_alignment == "bottom-right" else 0
    left, right = case.window or (-1, 0 if case.causal else -1)
    whole = (case.batch, case.heads, case.seqlen_q, case.seqlen_k)
    of = {x: np.broadcast_to(given[x], whole)[b, h, i] for x in ("mask", "bias", "dropout_mask") if x in given}
    scores, off = [], 0.0
    for j in keys:
        dot = float(q[b, h, i] @ k[b, kv_h, j])
        score = dot * case.scale + float(of.get("bias", np.zeros(case.seqlen_k))[j])
        added = 0.0
        if case.alibi_slopes is not None:
            slope = 2.0 ** (-8 * (h + 1) / case.heads)
            added = slope * (j if case.alibi_form == "column" else -abs(j - i - shift))
        seen = (left < 0 or j >= i + shift - left) and (right < 0 or j <= i + shift + right)
        seen = seen and bool(of.get("mask", np.ones(case.seqlen_k, bool))[j])
        scores.append(score + added if seen else -math.inf)
        size = float(np.abs(q[b, h, i]) @ np.abs(k[b, kv_h, j])) * abs(case.scale)
        off = max(off, (case.head_dim + 2) * size + 4 * (abs(score) + abs(added)))
    sink = -math.inf if case.sinks is None else case.sinks[h]
    top = max([sink, *scores])
    if top == -math.inf:
        return np.zeros(case.head_dim_v), -math.inf, 0.0, 0.0
    weights = np.exp(np.array([*scores, sink]) - top)
    total, relative = weights.sum(), UNIT * (2 * off + 2 * len(keys) + 30)
    probs = weights[:-1] / total
    if "dropout_mask" in of:
        probs = np.where(of["dropout_mask"][: len(keys)], probs / (1 - case.dropout_p), 0)
    values = v[b, kv_h, : len(keys)]
    lse = top + math.log(total)
    size = probs @ np.abs(values) if len(keys) else np.zeros(case.head_dim_v)
    return probs @ values, lse, relative * size + UNIT, relative + UNIT * abs(lse)


def assert_right(case, trace, given):
    out, lse = (to_float64(trace.stages[name]) for name in ("out", "lse"))
    seen = 0
    for b, h, i in np.ndindex(case.batch, case.heads, case.seqlen_q):
        if (expected := row_of(case, given, b, h, i)) is None:
            assert np.all(out[b, h, i] == 0) and lse[b, h, i] == -np.inf
            continue
        value, of_lse, bound, bound_of_lse = expected
        assert out[b, h, i].shape == value.shape
        assert np.all(np.abs(out[b, h, i] - value) <= bound), (b, h, i)
        assert lse[b, h, i] == of_lse or abs(lse[b, h, i] - of_lse) <= bound_of_lse, (b, h, i)
        seen += 1
    assert seen


def ran(kernel, case, backend, given=None):
    given = dict(zip("qkv", case.inputs(), strict=True)) if given is None else given
    return run(kernel, case, inputs=given, backend=backend)


on_both = pytest.mark.parametrize("backend", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.mark.campaign
@pytest.mark.parametrize("form", ["distance", pytest.param("column", marks=pytest.mark.campaign)])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"seqlen_q": 37, "seqlen_k": 21, "causal": True}])
@on_both
def test_scores_have_all_added_and_probs_are_dropped(form, options, backend):
    """A sink far above the scores among them."""
    case = Case(**ADDED | options, alibi_form=form)
    given = inputs_of(case)
    trace = ran("flash", case, backend, given)
    assert_right(case, trace, given)
    assert diff(trace).verdict == "rounding"
    for other in ({"alibi_form": "column" if form == "distance" else "distance"}, {"sinks": (0.0,) * 4}):
        with pytest.raises(AssertionError):
            assert_right(case.but(**other), trace, given)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(len(POISONS)))
@pytest.mark.parametrize("alignment", ["bottom-right", "top-left"])
@on_both
def test_sequences_behind_each_other(seed, alignment, backend):
    """One without queries, and one without keys."""
    case = Case(**RAGGED, causal=True, causal_alignment=alignment, seed=seed)
    trace = ran("flash", case, backend)
    assert_right(case, trace, dict(zip("qkv", case.inputs(), strict=True)))
    assert diff(trace).verdict == "rounding"


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("seed", range(len(POISONS)))
@on_both
def test_pages_hold_the_keys_of_a_sequence_and_nothing_else(seed, layout, backend):
    """Over eight splits, of which short sequences have none, and the first alone has the sink; whatever lies behind
    their end.
    """
    sinks = (0.5, -2.0, 3.0, 60.0, 0.0, -1.0, 1.0, 2.0)
    case = Case(**DECODE, splits=8, kv_layout=layout, seed=seed, sinks=sinks)
    trace = ran("split_k", case, backend)
    assert poison_of(case) == POISONS[seed]
    assert_right(case, trace, dict(zip("qkv", case.inputs(), strict=True)))
    assert diff(trace).verdict == "rounding" and trace.stages["partial_max"].shape == (4, 8, 8, 1)
    assert np.all(trace.stages["partial_max"][0, :, 1:] == -np.inf)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(len(POISONS)))
@on_both
def test_caches_with_room_for_more(seed, backend):
    case = Case(**TILES, heads=2, seqlen_q=9, seqlens_k=(40, 17, 0), seqlen_k=50, window=(7, 3), seed=seed)
    trace = ran("flash", case, backend)
    assert_right(case, trace, dict(zip("qkv", case.inputs(), strict=True)))
    assert diff(trace).verdict == "rounding"


@pytest.mark.campaign(but=1)
@on_both
@pytest.mark.parametrize(
    ("kernel", "options"), [("flash", {}), ("split_k", {"splits": 3, "softcap": 5.0, "alibi_form": "column"})]
)
def test_all_switches_at_once(kernel, options, backend):
    case = Case(**ALL, **options)
    given = inputs_of(case)
    trace = ran(kernel, case, backend, given)
    if case.softcap is None:  # which row_of leaves out
        assert_right(case.but(sinks=tuple(case.of_heads["sinks"])), trace, given)
    assert diff(trace).verdict == "rounding"
    off = {"WHOLE", "COLUMN", "PACKED_K", "SPLIT", "SOFTCAP"}
    assert {*SWITCHES} - off <= {*constants(resolve(KERNELS[kernel], case), ("mask", "bias")).switches}


@pytest.mark.campaign
@on_both
def test_rows_wider_than_shared_memory_and_v_in_the_memory_of_k(backend):
    case = Case(**MLA)
    trace = ran("flash", case, backend)
    assert_right(case, trace, dict(zip("qkv", case.inputs(), strict=True)))
    assert diff(trace).verdict == "rounding"


@pytest.mark.campaign
@on_both
def test_packed_heads_change_no_bit(backend):
    case = Case(**DECODE, splits=3)
    packed, apart = (run("split_k", x, backend=backend) for x in (case, case.but(pack_gqa=False)))
    assert packed.stages["acc"].size and not np.isnan(packed.stages["out"]).any()
    assert all(stage.tobytes() == apart.stages[name].tobytes() for name, stage in packed.stages.items())


@pytest.mark.campaign
def test_a_watched_run_of_sequences_finds_nothing():
    """What no sequence has is written by nobody, and missed by nobody."""
    assert check("flash", Case(**RAGGED, causal=True)).findings == ()


# ---- which switches are on


@pytest.mark.parametrize(
    ("options", "beside", "switches"),
    [
        ({}, (), {"WHOLE"}),
        ({}, ("mask", "bias"), {"WHOLE", "MASK", "BIAS"}),
        (ADDED, ("dropout_mask",), {"WHOLE", "ALIBI", "SINKS", "DROPOUT"}),
        (ADDED | {"alibi_form": "column"}, (), {"WHOLE", "ALIBI", "COLUMN", "SINKS", "DROPOUT"}),
        (RAGGED, (), {"WHOLE", "DIM_V", "RAGGED", "PACKED_Q", "PACKED_K"}),
        (RAGGED | {"page_size": 8}, (), {"WHOLE", "DIM_V", "RAGGED", "PACKED_Q", "LENGTHS", "PAGED"}),
        (DECODE, (), {"WHOLE", "RAGGED", "LENGTHS", "PAGED", "PACK_GQA"}),
        ({"page_size": 4}, (), {"WHOLE", "LENGTHS", "PAGED"}),
        ({"seqlens_q": (3, 4), "seqlen_k": 9}, (), {"WHOLE", "RAGGED", "PACKED_Q"}),
        (MLA, (), {"DIM_V", "RAGGED", "PACKED_Q", "PACKED_K"}),
        ({"softcap": 5.0, "window": (3, 0), "splits": 2}, (), {"WHOLE", "SOFTCAP", "WINDOW", "SPLIT"}),
    ],
)
def test_switches(options, beside, switches):
    kernel = KERNELS["split_k" if "splits" in options else "flash"]
    assert {*constants(resolve(kernel, Case(**options)), beside).switches} == switches <= {*SWITCHES}


# ---- refusals


def shift(score, b, h, q_idx, kv_idx):
    return score + 1


def test_what_kernels_do_not_take_is_refused():
    assert refusal(resolve, KERNELS["flash"], Case(score_mod=shift)) == (
        f"kernel flash takes no score_mod; got {__name__}:shift: pass it as bias if it only adds to scores"
    )
    assert refusal(resolve, KERNELS["split_k"], Case(head_dim_v=577)) == (
        "kernel split_k takes head_dim_v 1 to 576; got 577"
    )


VALUES = dict(
    seqlens_q=(3, 4), seqlens_k=(3, 4), shared_kv=True, softcap=5.0, window=(3, 0), alibi_slopes="geometric",
    sinks="normal", dropout_p=0.5, score_mod=shift, mask_mod=shift, page_size=8, pack_gqa=True,
)  # fmt: skip


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_the_kernel_on_codes_refuses_what_is_for_floats(name):
    needed = {"seqlen_q": 4} if name == "seqlens_k" else {"head_dim_v": 64, "scale": 0.1} if name == "shared_kv" else {}
    case = Case(**{name: VALUES[name]}, **needed)
    assert refusal(resolve, KERNELS["fp8"], case) == f"kernel fp8 takes no {name}; got {getattr(case, name)}"
