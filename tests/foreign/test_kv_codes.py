"""Functions of NumPy on a KV cache of codes, whose q has none: right and wrong, drawn and from a file."""

from collections.abc import Callable, Collection
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.refusals import MISSING_KEYWORD
from workbench import Case, Refusal, diff, run
from workbench.case.stages import stages_of
from workbench.foreign.arguments import drawn
from workbench.trace.file import load
from workbench.trace.file import save as save_trace
from workbench.trace.inputs import case_of, save

CASE = Case(batch=2, heads=4, kv_heads=2, seqlen_q=9, seqlen_k=21, head_dim=80, dtype="float16", codes_of="kv")
#: format, what has a scale, dtype of q
KINDS = (
    ("int8", "token", "float16"),
    ("int4", "block", "bfloat16"),
    ("e4m3", None, "float32"),
    ("e4m3", "token", "float16"),
)
FAULTS = {
    "next-block": "scales and zero points of the wrong blocks are read: off by one (i gets i + 1), wrapping around (v)",
    "no-zero": "the zero point is not subtracted (k)",
    "scales-of-k": "codes are decoded with the scale of k (v)",
}


def decoded(kind: str, codes: np.ndarray, scale: np.ndarray, zero: Any = 0.0, shift: int = 0) -> np.ndarray:
    """Rows of float16; `shift`: by the scales of the block so much further."""
    dims = codes.shape[-1]
    if scale.ndim == 1:
        scale = scale[:, None, None]
    else:
        at = (np.arange(dims) // (64 if scale.shape[-1] > 1 else dims) + shift) % scale.shape[-1]
        scale, zero = scale[..., at], zero[..., at] if isinstance(zero, np.ndarray) else zero
    values = codes if kind == "int4" else codes.view(np.int8 if kind == "int8" else ml_dtypes.float8_e4m3fn)
    return ((values.astype(np.float32) - np.float32(zero)) * scale).astype(np.float16)


def kernel(kind: str, *names: str, fault: str = "") -> Callable[..., Any]:
    """A kernel on codes of k and v that tells the stages `names`."""

    def told(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> dict[str, np.ndarray]:
        group = q.shape[1] // k.shape[1]
        wide = [x.astype(np.float32) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1))]
        qk = wide[0] @ wide[1].swapaxes(-1, -2)
        scores = qk * np.float32(scale)
        probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out = (probs @ wide[2] / probs.sum(axis=-1, keepdims=True)).astype(q.dtype)
        stages = {"dequant_k": k, "dequant_v": v, "qk": qk, "scores": scores, "out": out}
        return {name: stages[name] for name in names}

    def plain(q: Any, k: Any, v: Any, *, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        of_v = scale_k if fault == "scales-of-k" else scale_v
        return told(q, decoded(kind, k, scale_k), decoded(kind, v, of_v), scale)

    def with_zeros(
        q: Any, k: Any, v: Any, *, scale_k: Any, scale_v: Any, zero_k: Any, zero_v: Any, scale: float, causal: bool
    ) -> Any:
        k = decoded(kind, k, scale_k, 0.0 if fault == "no-zero" else zero_k)
        return told(q, k, decoded(kind, v, scale_v, zero_v, shift=int(fault == "next-block")), scale)

    return with_zeros if kind == "int4" else plain


def without_q(names: Collection[str]) -> bool:
    return not any(name.endswith("_q") for name in names)


@pytest.mark.campaign(but=4)
@pytest.mark.parametrize(
    "names", [("dequant_k", "dequant_v", "qk", "out"), ("dequant_v", "out"), ("out",)], ids=",".join
)
@pytest.mark.parametrize(("kind", "by", "dtype"), KINDS)
def test_a_right_kernel_is_right_whatever_it_tells(kind: str, by: str, dtype: str, names: tuple[str, ...]) -> None:
    """The keywords say that q has no codes; saying it of the case is the same."""
    case = CASE.but(codes=kind, scale_of=by, dtype=dtype, quantiser_scale="static" if len(names) == 2 else "dynamic")
    judged = diff(run(kernel(kind, *names), case.but(codes_of=None)))
    assert judged.verdict in ("exact", "rounding") and judged.origins == (), judged
    assert judged.trace.case.codes_of == "kv" and without_q(judged.trace.stages)
    assert {*judged.loss.inputs} == {*"kv"} and np.abs(judged.loss.of_out).max() > 0
    assert f"codes {kind} of k and v" in str(judged)
    assert diff(run(kernel(kind, *names), case)).verdict == judged.verdict


def test_q_is_read_as_it_is() -> None:
    """A q that a kernel rounded to 8 bits is no q: qk is made of q itself and of what k was decoded to."""

    def coarse(q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        return kernel("int8", "dequant_k", "dequant_v", "qk", "out")(
            q.astype(ml_dtypes.float8_e4m3fn).astype(q.dtype), k, v, **keywords
        )

    def takes(q: Any, k: Any, v: Any, *, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        return coarse(q, k, v, scale_k=scale_k, scale_v=scale_v, scale=scale, causal=causal)

    judged = diff(run(takes, CASE.but(codes="int8", scale_of="token")))
    assert judged.origins == ("qk",) and judged["dequant_k"].verdict == "exact"


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_stage_with_its_cause(fault: str) -> None:
    kind, by = ("int8", "token") if fault == "scales-of-k" else ("int4", "block")
    of = "k" if fault == "no-zero" else "v"
    case = CASE.but(codes=kind, scale_of=by)
    wrong = diff(run(kernel(kind, "dequant_k", "dequant_v", "out", fault=fault), case))
    assert wrong.verdict == "bug" and wrong.origins == (f"dequant_{of}",)
    assert [cause.text for cause in wrong.explained.causes] == [FAULTS[fault]]
    # with out alone it is a bug as well
    assert diff(run(kernel(kind, "out", fault=fault), case)).origins == ("out",)


@pytest.mark.campaign
def test_scales_of_a_head_are_told_apart() -> None:
    """Every head decoded with the scale of the first; none of what is tried is of q, which has no scale."""

    def first(q: Any, k: Any, v: Any, *, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        return kernel("e4m3", "dequant_k", "dequant_v", "out")(
            q, k, v, scale_k=0 * scale_k + scale_k[0], scale_v=scale_v, scale=scale, causal=causal
        )

    wrong = diff(run(first, CASE.but(codes="e4m3")))
    assert wrong.origins == ("dequant_k",)
    assert wrong.explained.causes[0].text == "all heads are decoded with the scale of head 0 (k)"


@pytest.mark.parametrize(("kind", "by", "dtype"), KINDS[:3])
def test_inputs_from_a_file(kind: str, by: str, dtype: str, tmp_path: Any) -> None:
    """q as it is beside codes and scales, as a dump of a cache has them; k and v were never seen."""
    made = drawn(CASE.but(codes=kind, scale_of=by, dtype=dtype))
    assert without_q(made)
    path = tmp_path / "inputs.safetensors"
    save({name: x for name, x in made.items() if name == "q" or "_" in name}, path)
    given = case_of(path, codes=kind, scale_of=by)
    assert given.dtype == dtype and given.head_dim == 80
    judged = diff(run(kernel(kind, "dequant_k", "out"), given, inputs=path))
    assert judged.verdict in ("exact", "rounding") and judged.loss is None and judged.trace.case.codes_of == "kv"
    save_trace(judged.trace, tmp_path / "trace.safetensors")
    assert diff(load(tmp_path / "trace.safetensors")).verdict == judged.verdict
    if kind == "int4":
        wrong = diff(run(kernel(kind, "dequant_v", "out", fault="next-block"), given, inputs=path))
        assert wrong.origins == ("dequant_v",)


def test_a_kernel_that_quantises_k_and_v_by_itself() -> None:
    """The case says what it makes codes of; codes of q are then none of its stages."""

    def quantising(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        read, stages = {"q": q}, {}
        for x, array in (("k", k.astype(np.float32)), ("v", v.astype(np.float32))):
            own = abs(array).max(axis=-1, keepdims=True) / np.float32(127)
            codes = np.rint(array / own).astype(np.int8).view(np.uint8)
            read[x] = decoded("int8", codes, own)
            stages |= {f"scale_{x}": own, f"codes_{x}": codes, f"dequant_{x}": read[x]}
        made = kernel("int8", "qk", "out")(
            *(read["q"], stages["codes_k"], stages["codes_v"]),
            **{"scale_k": stages["scale_k"], "scale_v": stages["scale_v"], "scale": scale, "causal": causal},
        )
        return stages | made

    judged = diff(run(quantising, CASE.but(codes="int8", scale_of="token")))
    assert judged.verdict in ("exact", "rounding") and judged["codes_k"].verdict == "exact"
    with pytest.raises(Refusal, match="unknown stage 'dequant_q'; stages of block_scaled: "):
        run(lambda q, k, v, **_: {**quantising(q, k, v, scale=1.0, causal=False), "dequant_q": q}, judged.trace.case)


def test_wrong_usage_is_refused() -> None:
    def refusal(function: Callable[..., Any], case: Case, **options: Any) -> str:
        with pytest.raises(Refusal) as refused:
            run(function, case, **options)
        return str(refused.value)

    case = CASE.but(codes="int8", scale_of="token")
    assert refusal(kernel("int8", "out"), case.but(codes_of="qkv")) == (
        "plain takes quantised codes of k and v only: it has no keyword scale_q; got codes_of=qkv"
    )
    assert refusal(kernel("int8", "out"), case.but(codes="int4")) == (
        "plain takes int4 codes, which also have zero_k, zero_v: add the keywords"
    )
    assert refusal(kernel("int8", "out"), CASE).startswith(
        "plain takes quantised codes (keyword scale_k): choose codes, one of simulated, e4m3, "
    )
    assert refusal(kernel("int8", "out"), case, inputs=drawn(case.but(codes_of="qkv"))) == (
        "plain takes quantised codes of k and v only; the inputs also have scale_q, codes_q"
    )

    def of_all(q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        return q

    assert f"{MISSING_KEYWORD}: 'scale_q'" in refusal(of_all, case)
    with pytest.raises(Refusal, match="codes_of must be one of qkv, kv; got 'v'"):
        CASE.but(codes_of="v")


def test_stages_of_q_are_none_of_a_cache() -> None:
    every, of_cache = stages_of("block_scaled"), stages_of("block_scaled", coded="kv")
    assert {*every} - {*of_cache} == {f"{what}_q" for what in ("scale", "zero", "global", "codes", "dequant")}
