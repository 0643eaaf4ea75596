"""Functions of packages, called without a wrapper: torch's own, and stand-ins of those that are not installed here."""

import sys
import types
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import packages as stand_ins
from tests import triton_packages
from tests.refusals import refusal
from workbench import Case, Unavailable, diff, run
from workbench.bench.kernel import measure
from workbench.case.fields import FIELDS, LAID, PROBLEM, of_role
from workbench.case.stages import MASKS
from workbench.foreign import packages
from workbench.foreign.adapters import ADAPTERS, SHAPES
from workbench.foreign.keywords import VALUES, Asked
from workbench.operations.through_autograd import through_autograd

flex_attention = pytest.importorskip("torch.nn.attention.flex_attention", reason="torch is not installed")

RIGHT = ("rounding", "exact")
SDPA, FLEX = "torch:scaled_dot_product_attention", "torch:flex_attention"
FUNC, VARLEN, KVCACHE = (f"flash_attn:flash_attn_{x}" for x in ("func", "varlen_func", "with_kvcache"))
PREFILL, DECODE = (f"flashinfer:single_{x}_with_kv_cache" for x in ("prefill", "decode"))
PAGED = "flashinfer:BatchDecodeWithPagedKVCacheWrapper"
XFORMERS, JAX = "xformers.ops:memory_efficient_attention", "jax.nn:dot_product_attention"
FLA, NSA = "fla.ops:parallel_attn", "native_sparse_attention.ops:flash_attention_varlen"
AITER, AITER_VARLEN = (f"aiter.ops.triton.mha:flash_attn_{x}" for x in ("func", "varlen_func"))


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.install(monkeypatch)
    triton_packages.install(monkeypatch)
    # without the import of torch's compiler, which takes seconds; the numbers are the same
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def third(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx + 2 * kv_idx + h) % 3 != 0


def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + 0.05 * (q_idx - kv_idx)


SMALL = Case(seqlen_q=9, seqlen_k=12, heads=2, head_dim=16, scale=0.3)
RAGGED = Case(seqlens_q=(9, 0, 4), seqlens_k=(6, 3, 12), heads=2, head_dim=16)
HALF = SMALL.but(dtype="float16")
HALVES = RAGGED.but(dtype="bfloat16")
CACHE = Case(batch=3, seqlen_q=1, seqlens_k=(9, 1, 12), heads=2, kv_heads=1, head_dim=16, dtype="float16", seqlen_k=14)
ONE = Case(seqlen_q=1, seqlen_k=12, heads=2, kv_heads=1, head_dim=16, dtype="float16", scale=0.3)
SLOPES = {"alibi_slopes": (0.5, 0.125)}
TOP_LEFT = {"causal": True, "causal_alignment": "top-left"}
MLA = {"head_dim_v": 8, "shared_kv": True}
SINKS = {"sinks": (0.5, -1.0)}
#: as many queries as keys
EVEN = Case(seqlen=12, heads=2, head_dim=16, dtype="float16", scale=0.3)
UNEVEN = Case(seqlens_q=(9, 0, 4), seqlens_k=(9, 0, 4), heads=2, head_dim=16, dtype="bfloat16")

CASES = {
    SDPA: [
        SMALL.but(causal=True), SMALL.but(**TOP_LEFT), SMALL.but(seqlen=9, causal=True, kv_heads=1, **MLA),
        RAGGED.but(causal=True, window=(3, -1)), HALVES.but(mask_mod=third, **SLOPES),
        HALF.but(**SLOPES, alibi_form="column"),
    ],
    FLEX: [
        SMALL.but(causal=True, kv_heads=1, softcap=2.0, **MLA),
        HALVES.but(**TOP_LEFT, window=(3, -1), mask_mod=third, score_mod=relative, **SLOPES),
        SMALL.but(**SLOPES, alibi_form="column"),
    ],
    FUNC: [
        HALF.but(causal=True, kv_heads=1), HALF.but(window=(3, 1), softcap=2.0), HALF.but(**SLOPES),
        HALF.but(causal=True, alibi_form="column", **SLOPES),
    ],
    VARLEN: [
        HALVES.but(causal=True, kv_heads=1, softcap=2.0), HALVES.but(window=(3, 1), **SLOPES),
        HALVES.but(seed=1, page_size=4, scale=0.3, causal=True, **SLOPES, alibi_form="column"),
    ],
    KVCACHE: [
        CACHE.but(scale=0.3, causal=True, softcap=2.0), CACHE.but(seed=1, window=(3, -1), **SLOPES),
        CACHE.but(seed=2, page_size=4), CACHE.but(page_size=4, causal=True, alibi_form="column", **SLOPES),
    ],
    PREFILL: [HALF.but(causal=True, kv_heads=1, window=(3, 0)), HALF.but(kv_layout="HND", softcap=2.0, window=(3, -1))],
    DECODE: [ONE.but(window=(3, -1), causal=True), ONE.but(kv_layout="HND", softcap=2.0)],
    PAGED: [CACHE.but(seed=seed, page_size=4) for seed in range(3)] + [
        CACHE.but(seed=1, scale=0.3, page_size=5, kv_layout="HND", softcap=2.0, window=(3, -1), causal=True)
    ],
    XFORMERS: [
        HALF.but(causal=True), HALF.but(**TOP_LEFT, head_dim_v=8), HALF.but(seqlen=9, causal=True),
        HALF.but(window=(3, -1)), HALF.but(causal=True, window=(3, 0)),
    ],
    FLA: [
        EVEN.but(causal=True, kv_heads=1, head_dim_v=8), EVEN.but(causal=True, window=(3, 0), **SINKS),
        EVEN.but(batch=2, window=(0, 0)), UNEVEN.but(causal=True, window=(3, 0)), UNEVEN.but(window=(-1, 0), kv_heads=1),
        SMALL.but(seqlen=12, causal=True),
    ],
    AITER: [
        HALF.but(causal=True, kv_heads=1), HALF.but(batch=2, window=(3, -1), **SLOPES),
        HALF.but(causal=True, window=(3, 0), **SINKS), HALF.but(head_dim=48, head_dim_v=32),
        HALF.but(seqlen_q=14, causal=True, **SLOPES), SMALL.but(seqlen_q=14, **SINKS),
    ],
    AITER_VARLEN: [
        HALVES.but(causal=True, kv_heads=1), HALVES.but(window=(3, -1), scale=0.3, **SLOPES),
        UNEVEN.but(causal=True, window=(3, 0), **SINKS), HALVES.but(head_dim=48, head_dim_v=32, seqlens_k=(6, 0, 12)),
    ],
    NSA: [
        EVEN.but(causal=True, kv_heads=1, head_dim_v=8), UNEVEN.but(causal=True), UNEVEN.but(batch=3, kv_heads=1),
    ],
    JAX: [
        SMALL.but(causal=True, kv_heads=1), SMALL.but(**TOP_LEFT), SMALL.but(**TOP_LEFT, window=(3, 0)),
        SMALL.but(window=(3, 1)), RAGGED.but(mask_mod=third), HALVES,
        RAGGED.but(causal=True), Case(seqlen=9, window=(-1, 2), head_dim=16),
    ],
}  # fmt: skip
ALL = [(target, case) for target, cases in CASES.items() for case in cases]


@pytest.mark.campaign(but=12)
@pytest.mark.parametrize(("target", "case"), ALL, ids=[f"{target} {n}" for n, (target, _) in enumerate(ALL)])
def test_what_a_function_takes_it_is_given(target: str, case: Case) -> None:
    judged = diff(run(target, case, device="cpu"))
    assert judged.verdict in RIGHT, (judged.verdict, judged.origins)
    assert [stage.name for stage in judged] == ["out", "lse"][: 2 if ADAPTERS[target].lse else 1]


def test_functions_of_a_case_import_what_lies_beside_them(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("STEP = 0.05\n")
    (tmp_path / "mods.py").write_text(
        "def relative(score, b, h, q_idx, kv_idx):\n"
        "    from beside import STEP\n"
        "    return score + STEP * (q_idx - kv_idx)\n"
        "def third(b, h, q_idx, kv_idx):\n"
        "    import beside\n"
        "    return (q_idx + 2 * kv_idx + h) % 3 != 0\n"
    )
    case = SMALL.but(score_mod=f"{tmp_path}/mods.py:relative", mask_mod=f"{tmp_path}/mods.py:third")
    assert diff(run(FLEX, case)).verdict in RIGHT


@pytest.mark.parametrize("target", ADAPTERS)
def test_every_field_that_it_takes_has_a_case(target: str) -> None:
    assert {*ADAPTERS[target].takes} <= {*FIELDS, *MASKS}
    shown = {name for case in CASES[target] for name in case.unusual}
    shown |= {"seqlens_q", "seqlens_k"} if any(case.ragged for case in CASES[target]) else set()
    assert {*ADAPTERS[target].takes} - {"mask", "bias"} - shown == set()


def given(case: Case, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip("qkv", case.inputs(), strict=True)) | arrays


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize("target", [SDPA, FLEX, JAX])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masks_and_biases_of_the_inputs(target: str, dtype: str) -> None:
    case = SMALL.but(dtype=dtype, mask_mod=third)
    rng = np.random.default_rng(0)
    bias = rng.standard_normal((1, 2, 9, 12)).astype(case.inputs()[0].dtype)
    mask = rng.random((9, 12)) < 0.8
    for arrays in ({"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias}):
        assert diff(run(target, case, inputs=given(case, **arrays))).verdict in RIGHT
    other = given(case, mask=mask, bias=bias) | {"mask": ~mask}
    trace = run(target, case, inputs=other)
    wrong = replace(trace, inputs=run(target, case, inputs=given(case, mask=mask, bias=bias)).inputs)
    assert diff(wrong).verdict == "bug"


@pytest.mark.parametrize(
    ("target", "case", "ignored"),
    [
        (FUNC, HALF.but(softcap=2.0), {"softcap": 0.0}),
        (FUNC, HALF.but(window=(3, 1)), {"window": (-1, -1)}),
        (FUNC, HALF.but(**SLOPES), {"slopes": None}),
        (FUNC, HALF.but(causal=True, alibi_form="column", **SLOPES), {"column": False}),
        (FUNC, HALF.but(causal=True), {"top_left": True}),
        (VARLEN, HALVES.but(causal=True), {"window": (-1, -1)}),
        (PREFILL, HALF.but(causal=True), {"causal": False}),
        (PREFILL, HALF.but(window=(3, -1)), {"window": (4, -1)}),
        (DECODE, ONE, {"scale": 0.25}),
        (XFORMERS, HALF.but(causal=True), {"top_left": True}),
        (FLA, EVEN.but(causal=True, window=(3, 0)), {"window": (4, -1)}),
        (FLA, UNEVEN.but(causal=True), {"causal": False}),
        (FLA, EVEN.but(causal=True, **SINKS), {"sinks": None}),
        (AITER, HALF.but(window=(3, -1)), {"window": (-1, -1)}),
        (AITER, HALF.but(causal=True), {"top_left": True}),
        (AITER, HALF.but(**SLOPES), {"column": True}),
        (AITER, HALF.but(batch=2, **SINKS), {"sinks": None}),
        (AITER_VARLEN, HALVES.but(**SLOPES), {"slopes": None}),
        (NSA, UNEVEN.but(causal=True), {"causal": False}),
        (NSA, EVEN, {"scale": 0.25}),
        (JAX, RAGGED, {"mask": None}),
        (JAX, SMALL.but(**TOP_LEFT, window=(3, 0)), {"window": (-1, -1)}),
    ],
)
def test_a_function_that_ignores_what_it_is_given_is_a_bug(
    target: str, case: Case, ignored: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = stand_ins.attend
    monkeypatch.setattr(stand_ins, "attend", lambda *arrays, **options: right(*arrays, **(options | ignored)))
    assert diff(run(target, case, device="cpu")).verdict == "bug"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("target", [VARLEN, KVCACHE, PAGED])
def test_a_function_that_reads_what_is_nobodys_in_a_page_is_a_bug(
    target: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN, infinities or stale values in turn; a function that keeps to the lengths sees none of them."""
    right = stand_ins._of_pages
    monkeypatch.setattr(stand_ins, "_of_pages", lambda x, table, n: right(x, table, -(-n // x.shape[1]) * x.shape[1]))
    assert diff(run(target, CACHE.but(seed=seed, page_size=8), device="cpu")).verdict == "bug"


def test_an_lse_of_another_base_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, DECODE, replace(ADAPTERS[DECODE], base2=False))  # type: ignore[attr-defined]
    assert diff(run(DECODE, ONE, device="cpu")).origins == ("lse",)


@pytest.mark.parametrize("field", ["softcap", "alibi_slopes", "window", "mask_mod", "score_mod", "seqlens"])
def test_flex_attention_without_what_the_case_has_is_a_bug(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {
        "softcap": {"softcap": 2.0}, "window": {"window": (3, -1)}, "mask_mod": {"mask_mod": third},
        "alibi_slopes": SLOPES, "score_mod": {"score_mod": relative}, "seqlens": {},
    }  # fmt: skip
    case = (RAGGED if field == "seqlens" else SMALL).but(**fields[field])
    assert diff(run(FLEX, case)).verdict in RIGHT
    monkeypatch.setattr(packages, "_score_mod", lambda call: None)
    monkeypatch.setattr(packages, "_mask_mod", lambda call: None)
    assert diff(run(FLEX, case)).verdict == "bug"


SDPA_TAKES = (
    "scale, causal, causal_alignment, kv_heads, head_dim_v, shared_kv, seqlens_q, seqlens_k, window, alibi_slopes, "
    "alibi_form, mask_mod, mask, bias"
)


@pytest.mark.parametrize(
    ("target", "case", "message"),
    [
        (SDPA, SMALL.but(softcap=2.0), f"{SDPA} takes no softcap, which the case has (softcap=2.0); it takes {SDPA_TAKES}"),
        (SDPA, SMALL.but(dropout_p=0.5), f"{SDPA} takes no dropout_p, which the case has (dropout_p=0.5); it takes {SDPA_TAKES}"),
        (FUNC, HALF.but(head_dim_v=8), f"{FUNC} takes no head_dim_v, which the case has (head_dim_v=8); it takes scale, causal, kv_heads, window, softcap, alibi_slopes, alibi_form"),
        (FUNC, HALVES, f"{FUNC} takes no seqlens_q, which the case has (seqlens_q=9,0,4); it takes scale, causal, kv_heads, window, softcap, alibi_slopes, alibi_form"),
        (KVCACHE, HALVES, f"{KVCACHE} takes no seqlens_q, which the case has (seqlens_q=9,0,4); it takes scale, causal, kv_heads, window, softcap, alibi_slopes, alibi_form, seqlens_k, page_size"),
        (FUNC, HALF.but(mask_mod=third), f"{FUNC} takes no mask_mod, which the case has (mask_mod={__name__}:third); it takes scale, causal, kv_heads, window, softcap, alibi_slopes, alibi_form"),
        (FUNC, HALF.but(**TOP_LEFT), f"{FUNC} takes causal_alignment=bottom-right where lengths differ; the case has top-left"),
        (FUNC, HALF.but(causal=True, **SLOPES), f"{FUNC} takes alibi_form=column here; the case has distance"),
        (PREFILL, HALF.but(window=(3, 1)), f"{PREFILL} takes windows without a right side, or a causal one; the case has window=3,1"),
        (PREFILL, HALF.but(batch=2), f"{PREFILL} takes one sequence; the case has batch=2"),
        (DECODE, HALF, f"{DECODE} takes one query per sequence; the case has seqlen_q=9"),
        (PAGED, CACHE, f"{PAGED} takes a paged cache; the case has no page_size"),
        (XFORMERS, HALF.but(kv_heads=1), f"{XFORMERS} takes no kv_heads, which the case has (kv_heads=1); it takes scale, causal, causal_alignment, head_dim_v, window"),
        (FLA, EVEN, f"{FLA} takes causal masks alone; the case is not causal"),
        (FLA, SMALL.but(causal=True), f"{FLA} takes as many queries as keys; the case has 9 queries and 12 keys"),
        (FLA, RAGGED.but(causal=True), f"{FLA} takes as many queries as keys; the case has 9,0,4 queries and 6,3,12 keys"),
        (AITER, HALF.but(**TOP_LEFT), f"{AITER} takes causal_alignment=bottom-right where lengths differ; the case has top-left"),
        (AITER, HALF.but(window=(3, 1)), f"{AITER} takes windows without a right side, or a causal one; the case has window=3,1"),
        (AITER, HALF.but(head_dim_v=8), f"{AITER} takes a head_dim_v as head_dim, or one that leaves a power of two from 16, and is one; the case has head_dim=16 and head_dim_v=8"),
        (AITER, HALF.but(causal=True, alibi_form="column", **SLOPES), f"{AITER} takes no alibi_form, which the case has (alibi_form=column); it takes scale, causal, kv_heads, head_dim_v, window, alibi_slopes, sinks"),
        (AITER, HALF.but(causal=True, seqlen_q=14, **SINKS), f"{AITER} takes causal sinks where every row sees a key; the case has more queries than keys"),
        (AITER_VARLEN, HALVES.but(causal=True, **SINKS), f"{AITER_VARLEN} takes causal sinks where every row sees a key; the case has more queries than keys"),
        (NSA, SMALL.but(seqlen=12), f"{NSA} takes float16 and bfloat16; the case has float32"),
        (NSA, HALF, f"{NSA} takes as many queries as keys; the case has 9 queries and 12 keys"),
        (SDPA, SMALL.but(codes="e4m3"), f"{SDPA} takes no codes, which the case has (codes=e4m3); it takes {SDPA_TAKES}"),
    ],
)  # fmt: skip
def test_what_a_function_does_not_take_is_refused_with_what_it_takes(target: str, case: Case, message: str) -> None:
    assert refusal(run, target, case, device="cpu") == message


@pytest.mark.parametrize("target", ADAPTERS)
def test_no_field_is_ignored(target: str) -> None:
    """Each field of the problem and of its memory, which no shape tells, is taken or refused."""
    values: dict[str, Any] = {
        "softcap": 2.0, "window": (3, 1), "sinks": (0.5, 0.25), "dropout_p": 0.5, "score_mod": relative,
        "mask_mod": third, "page_size": 4, "kv_layout": "HND", "head_dim_v": 8, "kv_heads": 1, "codes": "e4m3",
        "alibi_slopes": (0.5, 0.125), "seqlens_q": (1,), "seqlens_k": (9,), "shared_kv": True,
    }  # fmt: skip
    told = {"scale", "causal", "causal_alignment", "alibi_form", *SHAPES}  # by all, or by rules
    assert {*values} | told >= {*of_role(PROBLEM, LAID)}
    base = Case(seqlen_q=2, seqlen_k=12, heads=2, head_dim=16, dtype="float16", scale=0.3)
    for field, value in values.items():
        if field not in ADAPTERS[target].takes and not (field == "mask_mod" and "mask" in ADAPTERS[target].takes):
            more = {"head_dim_v": 16} if field == "shared_kv" else {}
            assert f"takes no {field}, which" in refusal(run, target, base.but(**{field: value}, **more), device="cpu")


def test_keywords_are_made_for_those_that_are_given_some(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name, value in [*VALUES.items()]:
        counted = lambda asked, name=name, value=value: [made.append(name), value(asked)][1]  # noqa: E731
        monkeypatch.setitem(VALUES, name, counted)  # type: ignore[arg-type]
    run(SDPA, SMALL.but(causal=True))
    assert made == []
    run(FUNC, HALF, device="cpu")
    assert "scale" in made


def test_inputs_that_it_does_not_take_are_refused() -> None:
    mask = np.ones((9, 12), bool)
    message = refusal(run, FUNC, HALF, inputs=given(HALF, mask=mask), device="cpu")
    assert message.startswith(f"{FUNC} takes no mask, which the inputs hold; it takes scale, causal")


def test_other_options_are_refused() -> None:
    assert refusal(run, SDPA, SMALL, arrays="jax") == f"{SDPA} takes torch arrays in its own layout; got arrays='jax'"
    assert refusal(run, SDPA, SMALL, layout="bshd") == f"{SDPA} takes torch arrays in its own layout; got layout='bshd'"
    assert refusal(run, SDPA, SMALL, feed={"acc": "reference"}).startswith(
        f"{SDPA} has no parameter named after a stage"
    )


def test_a_target_is_the_function_by_its_own_name_or_itself() -> None:
    torch = stand_ins.torch
    function = torch.nn.functional.scaled_dot_product_attention
    wrapper = wraps(function)(lambda *arrays, **options: function(*arrays, **options))
    for target in (SDPA, "torch.nn.functional:scaled_dot_product_attention", function, wrapper):
        trace = run(target, SMALL.but(causal=True))
        assert diff(trace).verdict in RIGHT and trace.contract.scores_dtype == "float32"  # of its preset
        assert diff(trace).verdict == diff(trace.rerun(SMALL)).verdict


def test_what_is_known_of_a_function_gives_way_to_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(SDPA, HALF, contract="probs_dtype=float32").contract.probs_dtype == "float32"
    assert run(FLEX, HALF).contract.empty_out == 0 and run(SDPA, HALF).contract.empty_out != "any"
    assert run(FLEX, HALF, contract="empty_out=any").contract.empty_out == "any"
    on = ADAPTERS[SDPA].on["cuda"]
    monkeypatch.setitem(ADAPTERS, SDPA, replace(ADAPTERS[SDPA], on={"cpu": on}))
    assert run(SDPA, HALF).contract.empty_out == "any"
    assert run(SDPA, HALF, contract="empty_out=0").contract.empty_out == 0


def test_float32_is_tf32_on_a_gpu_alone_of_functions_that_multiply_it_so() -> None:
    case, narrow = SMALL.but(seqlen=12, causal=True), EVEN.but(causal=True)
    told = [
        ADAPTERS[x].promised(y, on).get("input_precision")
        for x in (FLA, AITER)
        for y in (case, narrow)
        for on in ("cuda", "cpu")
    ]
    assert told == ["tf32", *[None] * 7]
    assert run(FLA, case, device="cpu").contract.input_precision == "ieee"


def test_gradients_by_tf32_have_no_budget_and_are_refused() -> None:
    """On a GPU, where a function's arrays live unless it is said."""
    case = SMALL.but(seqlen=12, causal=True)
    read = dict(zip("qkv", case.inputs(), strict=True))
    message = refusal(through_autograd, triton_packages.parallel_attn, FLA, Asked(case, read))
    assert message == f"{FLA}, gradients: on a GPU it multiplies float32 as TF32; choose float16 or bfloat16"


def test_a_row_without_keys_has_an_lse_of_its_own() -> None:
    """0 of a causal one, as aiter stores it, and -inf of one whose sequence has no keys."""
    for case in (HALF.but(seqlen_q=14, causal=True), HALVES.but(seqlens_k=(6, 0, 12), seqlens_q=(9, 2, 4))):
        judged = diff(run(AITER_VARLEN, case, device="cpu"))
        assert judged.verdict in RIGHT, str(judged)


def test_a_package_that_cannot_be_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "xformers.py").write_text("raise OSError('libcuda.so.1: cannot open shared object')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("xformers", "xformers.ops"):
        monkeypatch.delitem(sys.modules, name)
    message = refusal(run, XFORMERS, HALF, device="cpu")
    assert message.startswith(f"{XFORMERS}: xformers.ops could not be imported:\n")
    assert message.endswith("OSError: libcuda.so.1: cannot open shared object\n")


def test_what_is_not_installed_or_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(Unavailable) as missing:
        run(FUNC, HALF, device="cpu")
    assert str(missing.value) == f"{FUNC} needs flash_attn, which is not installed here"
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    assert refusal(run, FUNC, HALF) == f"{FUNC}: flash_attn of flash_attn unknown has no flash_attn_func"
    assert refusal(run, "flash_attn:flash_attn", HALF) == (
        f"give your kernel as path.py:function; got 'flash_attn:flash_attn'; of flash_attn there are {FUNC}, "
        f"{VARLEN}, {KVCACHE}"
    )
    if not stand_ins.torch.cuda.is_available():
        with pytest.raises(Unavailable) as missing:
            run(PREFILL, HALF)
        assert str(missing.value) == "device cuda needs an NVIDIA GPU that torch can use; none was found"


def test_a_float_mask_on_a_gpu_is_in_the_dtype_of_q_or_refused() -> None:
    exact, other = np.array([-0.5, 3.0]), np.array([1 / 3])
    assert packages._float_mask(exact, "float16", on_gpu=True).dtype == np.float16
    assert packages._float_mask(other, "float16", on_gpu=False).dtype == np.float32
    assert refusal(packages._float_mask, other, "float16", on_gpu=True) == (
        "on a GPU, scaled_dot_product_attention takes a float mask only in the dtype of q, and float16 cannot "
        "represent what this case adds to scores. Choose dtype=float32, or slopes and lengths whose products float16 "
        "can represent"
    )


def test_what_calls_functions_itself_refuses_those_with_an_adapter() -> None:
    message = refusal(measure, SDPA, [SMALL])
    assert message == (
        f"bench kernel calls f(q, k, v, scale, causal); {SDPA} takes other arguments: give a wrapper as path.py:function"
    )


@pytest.mark.parametrize("said", ["NotImplementedError: NYI: E=8", "No valid triton configs. Out of shared memory"])
def test_what_the_compiler_of_flex_attention_has_no_kernel_for_is_refused(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"LoweringException:\n  )),){said}\n  target: flex_attention")

    monkeypatch.setattr(flex_attention, "flex_attention", compiled)
    assert refusal(run, FLEX, SMALL) == f"compiled, flex_attention does not take this case: {said}"
