"""Functions of NumPy on codes with a scale for each token or block of dims, in every format, right and wrong."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.refusals import refusal
from workbench import Case, Refusal, diff, run
from workbench.case.formats import FORMATS
from workbench.foreign.arguments import drawn
from workbench.trace.inputs import case_of, save

#: every format with every kind of scale that is of no head
SCALED = [(kind, by) for kind, form in FORMATS.items() for by in form.scales if by != "head"]
IDS = [f"{kind} a {by}" for kind, by in SCALED]
CASE = Case(batch=2, heads=4, kv_heads=2, seqlen_q=9, seqlen_k=21, head_dim=80)


def values_of(kind: str, codes: np.ndarray) -> np.ndarray:
    """What codes stand for before their scale, by ml_dtypes and NumPy alone."""
    if kind == "int4":
        return codes.astype(np.float32)
    if kind == "int8":
        return codes.view(np.int8).astype(np.float32)
    narrow: Any = {
        "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
        "nvfp4": ml_dtypes.float4_e2m1fn,
    }[kind.removeprefix("mxfp8-")]
    return codes.view(narrow).astype(np.float32)


def decoded(kind: str, codes: np.ndarray, scale: Any, zero: Any = None, over: Any = None, shift: int = 0) -> np.ndarray:
    """Rows of float16, each block of dims by its scale, or by that of the block `shift` further."""
    dims, blocks = codes.shape[-1], scale.shape[-1]
    size = {"mxfp8-e4m3": 32, "mxfp8-e5m2": 32, "nvfp4": 16, "int4": 64}.get(kind, 128) if blocks > 1 else dims
    at = (np.arange(dims) // size + shift) % blocks
    found = values_of(kind, codes)
    if zero is not None:
        found = found - zero[..., at]
    found = found * scale[..., at]
    return (found if over is None else found * over[:, None, None]).astype(np.float16)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> dict[str, np.ndarray]:
    group = q.shape[1] // k.shape[1]
    wide = [x.astype(np.float32) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1))]
    scores = wide[0] @ wide[1].swapaxes(-1, -2) * np.float32(scale)
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return {"scores": scores, "out": (probs @ wide[2] / probs.sum(axis=-1, keepdims=True)).astype(np.float16)}


def kernel(kind: str, *names: str, shift: int = 0, zero_off: int = 0) -> Callable[..., Any]:
    """A kernel that takes codes of a format with all that belongs to them, and tells the stages `names`; of V it takes
    the scales of the block `shift` further, and zero points off by `zero_off`.
    """

    def told(read: dict[str, np.ndarray], scale: float) -> dict[str, Any]:
        stages: dict[str, Any] = {f"dequant_{x}": array for x, array in read.items()}
        stages |= attention(*read.values(), scale)
        return {name: stages[name] for name in names}

    def plain(q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, scale: float, causal: bool) -> Any:
        rows = {"q": decoded(kind, q, scale_q), "k": decoded(kind, k, scale_k)}
        return told(rows | {"v": decoded(kind, v, scale_v, shift=shift)}, scale)

    def with_zeros(
        q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, zero_q: Any, zero_k: Any, zero_v: Any,
        scale: float, causal: bool,
    ) -> Any:  # fmt: skip
        rows = {"q": decoded(kind, q, scale_q, zero_q), "k": decoded(kind, k, scale_k, zero_k)}
        return told(rows | {"v": decoded(kind, v, scale_v, zero_v + zero_off, shift=shift)}, scale)

    def with_tensor_scales(
        q: Any, k: Any, v: Any, *, scale_q: Any, scale_k: Any, scale_v: Any, global_q: Any, global_k: Any,
        global_v: Any, scale: float, causal: bool,
    ) -> Any:  # fmt: skip
        rows = {"q": decoded(kind, q, scale_q, over=global_q), "k": decoded(kind, k, scale_k, over=global_k)}
        return told(rows | {"v": decoded(kind, v, scale_v, over=global_v, shift=shift)}, scale)

    return with_zeros if FORMATS[kind].zero else with_tensor_scales if FORMATS[kind].tensor_scale else plain


@pytest.mark.campaign(but=6)
@pytest.mark.parametrize("names", [("dequant_k", "dequant_v", "out"), ("out",)], ids=",".join)
@pytest.mark.parametrize(("kind", "by"), SCALED, ids=IDS)
def test_a_right_kernel_is_right_whatever_it_tells(kind: str, by: str, names: tuple[str, ...]) -> None:
    scaling = "static" if names == ("out",) else "dynamic"
    judged = diff(run(kernel(kind, *names), CASE.but(codes=kind, scale_of=by, quantiser_scale=scaling)))
    assert judged.verdict in ("exact", "rounding") and judged.origins == (), judged
    assert judged.trace.algorithm == "block_scaled" and [stage.name for stage in judged][-1] == "out"
    assert judged.trace.put_in and judged.loss is not None and np.abs(judged.loss.of_out).max() > 0


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["mxfp8-e4m3", "int4"])
def test_the_scale_of_the_next_block_is_named_with_its_cause(kind: str) -> None:
    wrong = diff(run(kernel(kind, "dequant_v", "out", shift=1), CASE.but(codes=kind)))
    assert wrong.verdict == "bug" and wrong.origins == ("dequant_v",) and wrong.victims == ("out",)
    both = "scales and zero points" if kind == "int4" else "scales"
    assert (
        wrong.explained.causes[0].text
        == f"{both} of the wrong blocks are read: off by one (i gets i + 1), wrapping around (v)"
    )
    # with out alone it is a bug as well
    assert diff(run(kernel(kind, "scores", "out", shift=1), CASE.but(codes=kind))).origins == ("out",)


@pytest.mark.campaign
def test_a_zero_point_off_by_one_is_named() -> None:
    wrong = diff(run(kernel("int4", "dequant_v", "out", zero_off=1), CASE.but(codes="int4")))
    assert wrong.origins == ("dequant_v",)
    assert wrong.explained.causes[0].text == "the zero point is off by 1 (v)"


@pytest.mark.parametrize(
    ("kind", "by", "suffix"), [("e4m3", "token", ".npz"), ("nvfp4", "block", ".npz"), ("int4", "block", ".safetensors")]
)
def test_inputs_from_a_file(kind: str, by: str, suffix: str, tmp_path: Any) -> None:
    """Codes and scales alone, as a dump of a KV cache has them; q, k and v were never seen."""
    case = CASE.but(codes=kind, scale_of=by)
    path = tmp_path / f"inputs{suffix}"
    save({name: x for name, x in drawn(case).items() if "_" in name}, path)
    given = case_of(path, codes=kind, scale_of=by)
    assert (given.codes, given.scale_of, given.head_dim) == (kind, by, 80)
    judged = diff(run(kernel(kind, "dequant_k", "out"), given, inputs=path))
    assert judged.verdict in ("exact", "rounding") and judged.loss is None
    if FORMATS[kind].zero:
        wrong = diff(run(kernel(kind, "dequant_v", "out", zero_off=1), given, inputs=path))
        assert wrong.origins == ("dequant_v",)


def test_arrays_in_the_dtypes_of_libraries() -> None:
    """Scales in E8M0 or e4m3, codes in float8 or float4, three axes where a token has one scale."""
    for kind, codes_dtype, scale_dtype in (
        ("mxfp8-e4m3", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu),
        ("nvfp4", ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn),
    ):
        case = CASE.but(codes=kind)
        made = drawn(case)
        inputs = {x: array for x, array in made.items() if x.startswith("global")}
        inputs |= {x: array.view(codes_dtype) for x, array in made.items() if x.startswith("codes")}
        inputs |= {x: array.astype(scale_dtype) for x, array in made.items() if x.startswith("scale")}
        assert diff(run(kernel(kind, "dequant_k", "out"), case, inputs=inputs)).verdict in ("exact", "rounding")
    case = CASE.but(codes="int8", scale_of="token")
    made = {x: array for x, array in drawn(case).items() if "_" in x}
    made |= {x: array[..., 0] for x, array in made.items() if x.startswith("scale")}
    assert diff(run(kernel("int8", "dequant_k", "out"), case, inputs=made)).verdict in ("exact", "rounding")


def test_wrong_usage_is_refused() -> None:
    case = CASE.but(codes="int4")
    assert refusal(run, kernel("int8", "out"), case) == (
        "plain takes int4 codes, which also have zero_q, zero_k, zero_v: add the keywords"
    )
    made = {x: array for x, array in drawn(case).items() if "_" in x}
    lacking = {x: array for x, array in made.items() if x != "zero_k"}
    assert refusal(run, kernel("int4", "out"), case, inputs=lacking) == (
        "with_zeros: int4 codes need codes_k, scale_k, zero_k; got scale_k, codes_k"
    )
    other = made | {"scale_k": made["scale_k"][..., :1, :]}
    assert refusal(run, kernel("int4", "out"), case, inputs=other) == (
        "with_zeros: scale_k has axes [b h k g] and must have shape [2, 2, 21, 2] for this case; got [2, 2, 1, 2]"
    )
    packed = made | {"codes_v": made["codes_v"] * 16}
    assert refusal(run, kernel("int4", "out"), case, inputs=packed).startswith(
        "with_zeros: int4 codes must be 0 to 15, one per byte; codes_v holds "
    )
    with pytest.raises(Refusal) as refused:
        CASE.but(codes="nvfp4", scale_of="head")
    assert (
        str(refused.value)
        == "nvfp4 codes take scale_of=block; got scale_of=head, which is for codes=simulated, e4m3, e5m2, int8"
    )


def quantising(kind: str, power: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """A kernel that makes MXFP8 codes by itself, with exponents of scales from `power` of max|x|, and tells them."""

    def made(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        stages: dict[str, Any] = {}
        for x, array in zip("qkv", (q, k, v), strict=True):
            blocks = np.stack([abs(array[..., i : i + 32]).max(-1) for i in range(0, array.shape[-1], 32)], -1)
            scales = np.exp2(power(blocks)).astype(np.float32)
            spread = np.repeat(scales, 32, -1)[..., : array.shape[-1]]
            codes = np.clip(array / spread, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
            stages |= {f"scale_{x}": scales, f"codes_{x}": codes, f"dequant_{x}": decoded(kind, codes, scales)}
        return stages | attention(*(stages[f"dequant_{x}"] for x in "qkv"), scale)

    return made


def test_both_rules_of_scales_of_powers_of_two_are_right_and_others_are_not() -> None:
    """OCP's, which may saturate, and the least one that does not; told or untold."""
    case = CASE.but(codes="mxfp8-e4m3")
    ocp = lambda x: np.floor(np.log2(x)) - 8  # noqa: E731
    least = lambda x: np.ceil(np.log2(x / 448))  # noqa: E731
    for power in (ocp, least):
        whole = quantising("mxfp8-e4m3", power)
        assert diff(run(whole, case)).verdict in ("exact", "rounding")
        for names in (("codes_v", "dequant_k", "dequant_v", "out"), ("out",)):
            some = lambda *args, names=names, whole=whole, **kw: {x: whole(*args, **kw)[x] for x in names}  # noqa: E731
            assert diff(run(some, case)).origins == (), names
    wrong = diff(run(quantising("mxfp8-e4m3", lambda x: np.rint(np.log2(x)) - 8), case))
    assert wrong.origins[:3] == ("scale_q", "scale_k", "scale_v")
    assert "rounded to nearest" in wrong.explained.causes[0].text


def test_what_a_format_does_not_have_keeps_the_default_of_a_function_that_reads_stages() -> None:
    given: dict[str, Any] = {}

    def reads(
        codes_q: Any, codes_k: Any, codes_v: Any, scale_q: Any, scale_k: Any, scale_v: Any,
        zero_k: Any = None, zero_v: Any = None, global_k: Any = "usual", *, scale: float, causal: bool,
    ) -> Any:  # fmt: skip
        given.update(zero_k=zero_k, zero_v=zero_v, global_k=global_k)
        zeros, of = (None, None, None), (codes_q, codes_k, codes_v)
        if zero_k is not None:
            zeros = (np.zeros_like(scale_q), zero_k, zero_v)
        rows = [decoded("mxfp8-e4m3" if zero_k is None else "int4", c, s, z)
                for c, s, z in zip(of, (scale_q, scale_k, scale_v), zeros, strict=True)]  # fmt: skip
        return {"out": attention(*rows, scale)["out"]}

    judged = diff(run(reads, CASE.but(codes="mxfp8-e4m3")))
    assert given == {"zero_k": None, "zero_v": None, "global_k": "usual"} and not judged.origins
    assert judged["out"].verdict == "rounding" and not {"zero_k", "global_k"} & {*judged.trace.put_in}
    made = run(reads, CASE.but(codes="int4"))
    assert given["zero_k"].shape == made.stages["zero_k"].shape and given["global_k"] == "usual"


def test_what_a_format_does_not_have_is_refused_where_it_is_needed_or_given() -> None:
    def needs(codes_k: Any, scale_k: Any, zero_k: Any, *, scale: float, causal: bool) -> Any:
        raise AssertionError

    def gives(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return {"zero_k": np.zeros((2, 2, 21, 3), np.float32), "out": np.zeros_like(q)}

    case = CASE.but(codes="mxfp8-e4m3")
    assert refusal(run, needs, case).endswith(
        "needs zero_k, which mxfp8-e4m3 codes of q, k, v do not have: give that parameter a default"
    )
    assert "unknown stage 'zero_k'; stages of block_scaled: scale_q, scale_k, scale_v, codes_q" in refusal(
        run, gives, case
    )
