"""Foreign kernels: any callable, with all, some or none of the stages, and what happens when it misbehaves."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from workbench import Case, Refusal, Unavailable, diff, run
from workbench.case.contract import Contract
from workbench.case.stages import STAGES

CASE = Case(seqlen=24, heads=4, kv_heads=2, head_dim=16, causal=True)
PROMISES = [field.name for field in fields(Contract) if field.metadata]


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool, **faults: float
) -> dict[str, np.ndarray]:
    """Plain float32 attention in NumPy with its stages, as a user might write it; a single tile of all keys."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.astype(np.float32), np.repeat(k, group, 1).astype(np.float32), np.repeat(v, group, 1).astype(np.float32)
    qk = q @ k.swapaxes(-1, -2)
    scores = qk * np.float32(scale * faults.get("scale_by", 1))
    if causal:
        hidden = np.triu(np.ones(scores.shape[-2:], bool), 1 + scores.shape[-1] - scores.shape[-2])
        scores = np.where(hidden, -np.inf, scores).astype(np.float32)
    row_max = scores.max(axis=-1)
    probs = np.exp(scores - row_max[..., None])
    row_sum = probs.sum(axis=-1) * np.float32(faults.get("row_sum_by", 1))
    acc = probs @ v
    stages = {"qk": qk, "scores": scores, "row_max": row_max[..., None], "probs": probs, "row_sum": row_sum[..., None]}
    return stages | {"acc": acc[..., None, :], "out": acc / row_sum[..., None], "lse": row_max + np.log(row_sum)}


def returning(*names: str, contract: dict[str, Any] | None = None, **faults: float) -> Callable[..., dict[str, Any]]:
    """`attention` that hands out these stages alone."""

    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, Any]:
        stages = attention(q, k, v, scale=scale, causal=causal, **faults)
        chosen: dict[str, Any] = {name: stages[name] for name in names}
        return chosen if contract is None else chosen | {"contract": contract}

    return kernel


EXACT = {"block_k": 24, "scores_dtype": "float32", "probs_dtype": "float32", "exp_ulps_per_x": 0.0, "fast_math": False}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_all_stages(dtype: str) -> None:
    everything = ("qk", "scores", "row_max", "probs", "row_sum", "acc", "out", "lse")
    judged = diff(run(returning(*everything, contract=EXACT), CASE.but(dtype=dtype)))
    assert judged.verdict == "rounding" and [stage.name for stage in judged] == list(everything)
    assert [stage.name for stage in judged.not_judged] == ["correction", "probs_cast"]
    faulty = diff(run(returning(*everything, contract=EXACT, scale_by=1.01), CASE.but(dtype=dtype)))
    assert faulty.origins == ("scores",)


def test_some_stages_without_a_contract_and_what_was_assumed() -> None:
    judged = diff(run(returning("scores", "probs", "out", "lse"), CASE))
    assert judged.verdict == "rounding" and judged["probs"].reason.startswith("the contract does not declare block_k")
    assert judged.trace.contract.assumed == (
        "block_k",
        "splits",
        "scores_dtype",
        "probs_dtype",
        "partials_dtype",
        "row_sum_of_cast",
        "probs_normalised",
        "accumulation",
        "mma_block",
        "mma_extra_bits",
        "accumulator_dtype",
        "input_precision",
        "scaled_q_dtype",
        "scale_in",
        "exp_ulps",
        "exp_ulps_per_x",
        "exp_flushes",
        "exp_floor",
        "exp_argument",
        "fast_math",
        "base2",
        "scores_scaled",
        "row_max",
        "normalisation",
        "tile_order",
        "skips_masked_tiles",
        "mask_sentinel",
        "empty_out",
        "empty_lse",
        "probs_rounding",
        "partials_rounding",
        "out_rounding",
        "saturates",
    )
    assert diff(run(returning("scores", "out", row_sum_by=1.001), CASE)).origins == ("out",)


@pytest.mark.parametrize("form", ["array", "pair"])
def test_output_alone(form: str) -> None:
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> Any:
        stages = attention(q, k, v, scale=scale, causal=causal)
        return stages["out"] if form == "array" else (stages["out"], stages["lse"])

    judged = diff(run(kernel, CASE))
    assert judged.verdict == "rounding" and [stage.name for stage in judged] == (
        ["out"] if form == "array" else ["out", "lse"]
    )
    assert judged["out"].isolated is None


def test_float64_output_of_a_prototype_is_judged_too() -> None:
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        return attention(q, k, v, scale=scale, causal=causal)["out"].astype(np.float64)

    assert diff(run(kernel, CASE)).verdict == "rounding"


def test_a_split_k_that_gives_its_partials_alone() -> None:
    """Without a contract the partials cannot be judged, but the merge can."""

    def kernel(
        q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool, twice: bool = False
    ) -> dict[str, np.ndarray]:
        halves = [
            attention(q, k[:, :, half], v[:, :, half], scale=scale, causal=False)
            for half in (slice(0, 12), slice(12, 24))
        ]
        partial = {name: np.stack([half[name][..., 0] for half in halves], axis=2) for name in ("row_max", "row_sum")}
        partial_o = np.stack([half["acc"][:, :, :, 0] for half in halves], axis=2)
        weight = np.exp(partial["row_max"] - partial["row_max"].max(axis=2, keepdims=True))
        total = (weight * partial["row_sum"]).sum(axis=2)
        weight = weight * partial["row_sum"] if twice else weight
        out = (weight[..., None] * partial_o).sum(axis=2) / total[..., None]
        return {
            "partial_max": partial["row_max"],
            "partial_sum": partial["row_sum"],
            "partial_O": partial_o,
            "out": out,
        }

    def faulty(*args: np.ndarray, **options: Any) -> dict[str, np.ndarray]:
        return kernel(*args, **options, twice=True)

    case = CASE.but(causal=False)
    assert diff(run(kernel, case)).verdict == "rounding"
    judged = diff(run(faulty, case))
    assert judged.origins == ("out",) and judged["out"].upstream == ("merge_max", "merge_weight", "merge_sum")
    told = diff(run(lambda *a, **o: kernel(*a, **o) | {"contract": {"block_k": 12, "splits": 2}}, case))
    assert [stage.name for stage in told] == [
        "partial_max",
        "partial_sum",
        "partial_O",
        "out",
    ] and told.verdict == "rounding"


def test_torch_functions_run_unmodified() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    seen = []

    def sdpa(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        seen.append((q.dtype, tuple(q.shape)))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal, enable_gqa=True)

    for dtype in ("float32", "float16", "bfloat16"):
        judged = diff(run(sdpa, CASE.but(dtype=dtype, causal_alignment="top-left"), arrays="torch"))
        assert judged.verdict == "rounding" and seen[-1] == (getattr(torch, dtype), (1, 4, 24, 16))


def test_bshd_functions_see_and_give_their_own_layout() -> None:
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        assert q.shape == (1, 24, 4, 16) and k.shape == (1, 24, 2, 16)
        return attention(*(x.swapaxes(1, 2) for x in (q, k, v)), scale=scale, causal=causal)["out"].swapaxes(1, 2)

    assert diff(run(kernel, CASE, layout="bshd")).verdict == "rounding"


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_strided_functions_see_views_of_another_memory(arrays: str) -> None:
    """A kernel that goes by strides is right; one that takes its inputs for contiguous reads other elements."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        q, k, v = (x if arrays == "torch" else torch.from_numpy(x) for x in (q, k, v))
        assert q.shape == (1, 4, 24, 16) and q.stride() == (1536, 16, 64, 1) and k.stride() == (768, 16, 32, 1)
        given = {"scale": scale, "is_causal": causal, "enable_gqa": True}
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **given)

    def careless(q: Any, k: Any, v: Any, **options: Any) -> Any:
        q, k, v = (x if arrays == "torch" else torch.from_numpy(x) for x in (q, k, v))
        contiguous = [x.as_strided(x.shape, torch.empty(x.shape).stride()) for x in (q, k, v)]
        return torch.nn.functional.scaled_dot_product_attention(
            *contiguous, scale=options["scale"], is_causal=options["causal"], enable_gqa=True
        )

    assert diff(run(kernel, CASE, arrays=arrays, layout="strided")).verdict == "rounding"
    assert diff(run(careless, CASE, arrays=arrays, layout="strided")).verdict == "bug"
    assert diff(run(careless, CASE, arrays=arrays)).verdict == "rounding"


def test_results_may_be_views_and_inputs_expanded() -> None:
    """Out of another memory order, keys and values that are one head's, seen as many."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def kernel(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        given = {"scale": scale, "is_causal": causal}
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **given)
        return out.transpose(1, 2).contiguous().transpose(1, 2)

    q, k, v = (torch.from_numpy(x) for x in CASE.but(kv_heads=1).inputs())
    one = (q[..., ::2], k[..., ::2].expand(-1, 4, -1, -1), v[..., ::2].expand(-1, 4, -1, -1))
    trace = run(kernel, CASE.but(kv_heads=4, head_dim=8), inputs=one, arrays="torch")
    assert diff(trace).verdict == "rounding" and np.array_equal(trace.inputs["k"][:, 3], k[:, 0, :, ::2].numpy())


def test_a_function_that_writes_into_its_inputs_does_not_spoil_the_judgement() -> None:
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        out = attention(q, k, v, scale=scale, causal=causal)["out"]
        k[:] = 0
        return out

    trace = run(kernel, CASE)
    assert trace.inputs["k"].any() and diff(trace).verdict == "rounding"


def kernel_of(result: Any) -> Callable[..., Any]:
    return lambda q, k, v, *, scale, causal: result


OUT = np.zeros((1, 4, 24, 16), np.float32)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            OUT[:, :, :23],
            "<lambda>: stage out has axes [b h q d] and must have shape [1, 4, 24, 16] for this case; got [1, 4, 23, 16]",
        ),
        (OUT.astype(np.int32), "<lambda>: out must be an array of float32, float16, bfloat16 or float64; got int32"),
        ({}, "<lambda> returned no stage; return out, (out, lse), or a dict of stage name -> array"),
        (
            {"scoers": OUT},
            f"<lambda> returned unknown stages scoers; stages are: {', '.join(STAGES)}",
        ),
        (
            {"capped": np.zeros((1, 4, 24, 24), np.float32), "out": OUT},
            "<lambda>: unknown stage 'capped'; stages of flash: qk, scores, row_max, correction, probs, probs_cast, row_sum, "
            "acc, out, lse",
        ),
        ({"out": OUT, "contract": 3}, '<lambda>: "contract" must be a dict; got int'),
        (
            {"out": OUT, "contract": {"tile": 3}},
            f"\"contract\" has no field 'tile'; use one of {', '.join(PROMISES)}",
        ),
        (
            {"out": OUT, "contract": {"block_k": 0}},
            '"contract" field block_k must be a whole number of at least 1; got 0',
        ),
        (
            {"out": OUT, "contract": {"probs_dtype": "fp16"}},
            '"contract" field probs_dtype must be one of float32, float16, bfloat16, float8_e4m3fn, float8_e5m2; '
            "got 'fp16'",
        ),
        ({"out": OUT, "contract": {"fast_math": 1}}, '"contract" field fast_math must be true or false; got 1'),
    ],
)
def test_wrong_results_are_refused(result: Any, message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        run(kernel_of(result), CASE)
    assert str(refusal.value) == message


HINT = "\nIf it expects torch tensors, pass --arrays torch."


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("{}\n    return q.view(3)\n", HINT),
        ("import numpy\n{}\n    return q.contigous()\n", HINT),  # says that it is no attribute of a numpy.ndarray
        ("import numpy\n{}\n    return q.transpose(-2, -1)\n", "axes don't match array\n"),
        ("{}\n    raise ValueError('head_dim 16')\n", "head_dim 16\n"),
        ("import torch\n{}\n    assert q.shape[2] > 99, 'short'\n", "short\n"),
    ],
)
def test_an_exception_is_shown_with_its_traceback_and_a_hint_where_that_may_help(
    tmp_path: Path, text: str, hint: str
) -> None:
    if "torch" in text:
        pytest.importorskip("torch", reason="torch is not installed")
    path = tmp_path / "mine.py"
    path.write_text(text.format("def attention(q, k, v, *, scale, causal):"))
    with pytest.raises(Refusal) as refusal:
        run(f"{path}:attention", CASE)
    message = str(refusal.value)
    assert message.startswith(f"{path}:attention raised on numpy arrays:\nTraceback")
    assert f'File "{path}", line {text.count(chr(10))}, in attention' in message
    assert message.endswith(hint)


def test_what_is_no_function_is_no_target() -> None:
    with pytest.raises(Refusal) as refusal:
        run(3, CASE)  # type: ignore[arg-type]
    assert str(refusal.value) == "a target must be a kernel's name, path.py:function, or a function; got 3"


def test_a_failure_that_shows_only_when_the_result_is_read_is_the_functions(tmp_path: Path) -> None:
    """As that of a kernel on a GPU, which runs on while its launch has long returned."""
    path = tmp_path / "mine.py"
    path.write_text(
        "class Late:\n    def __dlpack__(self, **options):\n        raise ValueError('an illegal memory access')\n\n"
        "    def __dlpack_device__(self):\n        return (1, 0)\n\n\n"
        "def attention(q, k, v, *, scale, causal):\n    return Late()\n"
    )
    with pytest.raises(Refusal) as refusal:
        run(f"{path}:attention", CASE)
    message = str(refusal.value)
    assert message.startswith(f"{path}:attention raised on numpy arrays:\nTraceback")
    assert "ValueError: an illegal memory access" in message


@pytest.mark.parametrize("kind", [Refusal, Unavailable])
def test_what_a_function_says_with_our_own_exceptions_is_passed_on(kind: type[Exception]) -> None:
    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        raise kind("there is no GPU here")

    with pytest.raises(kind) as raised:
        run(kernel, CASE)
    assert str(raised.value) == "there is no GPU here"


@pytest.mark.parametrize("name", ["torch", "sparse", "numpy"])
def test_a_file_may_have_the_name_of_a_library(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("def attention(q, k, v, *, scale, causal):\n    return 0 * q\n")
    before = sys.modules.get(name)
    assert diff(run(f"{tmp_path}/{name}.py:attention", CASE)).origins == ("out",)
    assert sys.modules.get(name) is before


def test_functions_that_cannot_be_found_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from json import nowhere_to_be_found\n")
    good = tmp_path / "good.py"
    good.write_text("def attention(): pass\ndef other(): pass\n")
    for target, message in [
        ("mine:attention", "give your kernel as path.py:function; got 'mine:attention'"),
        (f"{tmp_path}/no.py:f", f"{tmp_path}/no.py: no such file"),
        (f"{good}:flash", f"{good} defines no function 'flash'; it defines: attention, other"),
    ]:
        with pytest.raises(Refusal) as refusal:
            run(target, CASE)
        assert str(refusal.value) == message
    with pytest.raises(Refusal, match="could not be imported:\nTraceback"):
        run(f"{path}:f", CASE)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"arrays": "mlx"}, Refusal, "arrays must be one of numpy, torch, cupy, jax; got 'mlx'"),
        ({"device": "gpu"}, Refusal, "device must be one of cpu, cuda; got 'gpu'"),
        ({"layout": "sbhd"}, Refusal, "layout must be one of bhsd, bshd, strided; got 'sbhd'"),
        (
            {"device": "cuda"},
            Refusal,
            "NumPy arrays live on the cpu; got device 'cuda': pass --arrays torch, cupy or jax",
        ),
        (
            {"probes": "lean"},
            Refusal,
            "--probes is for built-in kernels (flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma); <lambda> is not built in",
        ),
        (
            {"case": CASE.but(scores="mma")},
            Refusal,
            "--codes scores is for built-in quantised kernels (fp8, fp8_mma, fp8_wgmma); <lambda> is not built in",
        ),
        (
            {"case": CASE.but(quantiser_scale="static")},
            Refusal,
            "quantiser_scale is for quantised kernels: give codes too; <lambda> got none",
        ),
        (
            {"case": CASE.but(codes_of="kv")},
            Refusal,
            "codes_of is for quantised kernels: give codes too; <lambda> got none",
        ),
        (
            {"case": CASE.but(scale_of="token")},
            Refusal,
            "scale_of is for quantised kernels: give codes too; <lambda> got none",
        ),
        (
            {"faults": ["x"]},
            Refusal,
            "--fault is for built-in kernels (flash, flash_tensor, flash_mma, flash_wgmma, split_k, split_mma, fp8, fp8_mma, fp8_wgmma); <lambda> is not built in",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error) as refusal:
        run(kernel_of(OUT), **({"case": CASE} | options))
    assert str(refusal.value) == message


def test_torch_on_a_gpu_that_is_not_there_is_unavailable() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(Unavailable) as missing:
        run(kernel_of(OUT), CASE, arrays="torch", device="cuda")
    assert str(missing.value) == "device cuda needs an NVIDIA GPU that torch can use; none was found"


def test_bfloat16_numpy_arrays_reach_the_function_in_their_own_dtype() -> None:
    seen = []

    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> np.ndarray:
        seen.append(q.dtype)
        return attention(q, k, v, scale=scale, causal=causal)["out"].astype(ml_dtypes.bfloat16)

    assert diff(run(kernel, CASE.but(dtype="bfloat16"))).origin is None and seen == [np.dtype(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("stages", [("out",), ("scores", "row_max", "row_sum", "acc", "out", "lse")])
def test_declared_splits_make_a_split_kernel_of_whatever_it_gives(stages: tuple[str, ...]) -> None:
    case = Case(seqlen=96, heads=2, head_dim=32, causal=True, block_q=16, block_k=16, splits=3)
    held = run("split_k", case, backend="emulator").stages

    def kernel(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool) -> dict[str, Any]:
        return {name: held[name] for name in stages} | {"contract": {"block_k": 16, "splits": 3}}

    judged = diff(run(kernel, case.but(block_q=None, block_k=None, splits=None)))
    assert judged.trace.algorithm == "split_k" and judged.verdict == "rounding"
    assert [stage.name for stage in judged] == list(stages)


def test_a_compiled_function_need_not_tell_its_parameters() -> None:
    class Compiled:
        """As pybind11 makes functions."""

        __name__ = "compiled"

        @property
        def __signature__(self) -> None:
            raise ValueError("no signature found for builtin")

        def __call__(self, *arrays: np.ndarray, **options: Any) -> Any:
            return attention(*arrays, **options)["out"]

    compiled = Compiled()
    with pytest.raises(ValueError, match="no signature found"):
        inspect.signature(compiled)
    assert diff(run(compiled, CASE)).verdict == "rounding"
    with pytest.raises(Refusal) as refused:
        run(compiled, CASE, feed={"partial_O": "reference"})
    assert str(refused.value).startswith("compiled has no parameter named after a stage")


def test_an_out_of_the_other_layout_is_named() -> None:
    def bshd(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> Any:
        return np.ascontiguousarray(v.swapaxes(1, 2))

    case = Case(seqlen=16, heads=2, head_dim=4)
    with pytest.raises(Refusal) as refused:
        run(bshd, case)
    assert str(refused.value) == (
        "bshd: out must have shape [1, 2, 16, 4] [b h q d] for this case; got [1, 16, 2, 4], which is [b q h d]: "
        "pass --arrays layout=bshd"
    )
    alike = run(bshd, Case(seqlen=16, heads=16, head_dim=4))
    assert alike.stages["out"].shape == (1, 16, 16, 4), "sizes do not tell"


def test_a_field_that_is_like_another_is_asked_after() -> None:
    with pytest.raises(Refusal, match="no field 'blockk'; did you mean block_k\\? Use one of block_k, "):
        run(lambda q, k, v, *, scale, causal: v, contract={"blockk": 32})
    with pytest.raises(Refusal, match="unknown preset 'tritn'; did you mean triton\\? Use one of flash-"):
        run(lambda q, k, v, *, scale, causal: v, contract="tritn")
