"""Liger-Kernel: losses, norms and rotary embeddings in Triton and torch. Its tests compare with torch's own functions,
so that references are plain ones.

Its losses over logits overwrite them with their gradient, which is documented: adapters give them a copy.
"""

from dataclasses import replace
from typing import Any

import torch

from campaigns.real.call import Call, takes
from campaigns.real.case import FLOAT32, NARROW, Case
from campaigns.real.inputs import Tensors, drawn
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

LIGER = "Liger-Kernel"
PROJECT = Project(
    name=LIGER, owner="linkedin", newest="ead96b61", paths=("src/liger_kernel",), root="src",
    tolerance={"float32": Tolerance(1e-5, 5e-4), "bfloat16": Tolerance(5e-3, 5e-2), "float16": Tolerance(5e-3, 5e-2)},
    stubs=("liger_kernel", "liger_kernel.ops", "liger_kernel.chunked_loss"),
)  # fmt: skip
#: torch's own operations behind or before a kernel; gradients that are stored, and multiplied when they are needed
EAGER = {"float32": "operands=float32"} | {x: f"operands={x},round=eager:{x}" for x in NARROW}
LLAMA = {"float32": Tolerance(1e-4, 1e-6), "bfloat16": Tolerance(2e-1, 2e-2)}


def _logits(seed: int, dtype: Any, T: int, V: int = 200) -> Tensors:
    """Logits, and the class of each token."""
    draw = drawn(seed)
    return {"x": (2 * draw(T, V)).to(dtype), "labels": _labels(seed, T, V)}


def _labels(seed: int, T: int, V: int, ignored: bool = False) -> torch.Tensor:
    """Classes; `ignored`: a third of the tokens, not the same in any two chunks, have none."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, V, (T,), generator=generator)
    return torch.where(torch.rand(T, generator=generator) < 1 / 3, -100, found) if ignored else found


def _sure(seed: int, dtype: Any, T: int, V: int = 200) -> Tensors:
    """Logits of a model that is right with probabilities from 0.9 to 0.999, and a gradient of 1."""
    made = _logits(seed, torch.float32, T, V)
    rest = torch.logsumexp(made["x"].scatter(-1, made["labels"][:, None], -torch.inf), -1)
    right = torch.logspace(-1, -3, T)
    made["x"].scatter_(-1, made["labels"][:, None], (rest + ((1 - right) / right).log())[:, None])
    return made | {"x": made["x"].to(dtype), "dresult": torch.ones(())}


def _layer(seed: int, dtype: Any, T: int, V: int = 128, H: int = 32) -> Tensors:
    """Of a last layer and its loss."""
    draw = drawn(seed)
    made = {"x": draw(T, H), "weight": draw(V, H) / H**0.5, "bias": draw(V)}
    return {name: x.to(dtype) for name, x in made.items()} | {"labels": _labels(seed, T, V)}


def _two(seed: int, dtype: Any, T: int, V: int = 128, H: int = 32, by: float = 1.0, ignored: bool = True) -> Tensors:
    """A student's last layer and a teacher's."""
    draw = drawn(seed)
    made = {"x": draw(T, H), "weight": by * draw(V, H), "teacher": draw(T, H), "teacher_weight": by * draw(V, H)}
    return {name: x.to(dtype) for name, x in made.items()} | {"labels": _labels(seed, T, V, ignored)}


def _near(seed: int, dtype: Any, T: int) -> Tensors:
    """Logits around 0, whose probabilities do not underflow in float16."""
    return _two(seed, dtype, T, by=0.2)


def _all_count(seed: int, dtype: Any, T: int) -> Tensors:
    return _two(seed, dtype, T, by=0.2, ignored=False)


def _far(seed: int, dtype: Any, T: int) -> Tensors:
    """Logits so far apart that probabilities underflow in both models."""
    return _two(seed, dtype, T, by=10.0, ignored=False)


def _probabilities(seed: int, dtype: Any, T: int, V: int = 200) -> Tensors:
    draw = drawn(seed)
    return {"x": draw(T, V).log_softmax(-1).to(dtype), "y": draw(T, V).softmax(-1).to(dtype)}


def _rows(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    """Rows whose mean is not 0, of a length that is no power of 2."""
    draw = drawn(seed)
    made = {"x": 1 + draw(T, D), "weight": 1 + draw(D) / 4, "bias": draw(D) / 4}
    return {name: x.to(dtype) for name, x in made.items()}


def _many_rows(seed: int, dtype: Any, T: int) -> Tensors:
    made = _rows(seed, dtype, T, 64)
    return {name: made[name] for name in ("x", "weight")}


def _heads(seed: int, dtype: Any, T: int, B: int = 2, H: int = 4, D: int = 32) -> Tensors:
    """Queries and keys of several rows, each at places of its own."""
    draw = drawn(seed)
    places = torch.arange(T) + 7 * torch.arange(B)[:, None]
    angles = places[..., None] * 10000.0 ** (-torch.arange(0, D, 2) / D)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    return {"q": draw(B, H, T, D).to(dtype), "k": draw(B, H // 2, T, D).to(dtype), "cos": cos, "sin": sin}


def _per_token(f: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
    return f(x.clone(), labels, None, -100, 0.0, 0.0, "none", None, False)[0]


def _mean(f: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
    return f(x.clone(), labels, None, -100, 0.0, 0.0, "mean", None, False)[0]


def _linear_per_token(f: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, labels: torch.Tensor) -> Any:
    return f(x, weight, labels, bias, None, -100, 0.0, 0.0, "none")[0]


def _distilled(f: Any, beta: float, **given: torch.Tensor) -> Any:
    """No biases, halves of both losses, no compilation, chunks of 64 tokens."""
    return f(*given.values(), None, None, 0.5, 0.5, beta, -100, 1.0, False, 64)


def _kl_mean(f: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    return f(x, y, "mean", False)


def _llama(f: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
    return f(x, weight, 1e-6, 0.0, "llama", False)


def _jsd(f: Any, beta: float, **given: torch.Tensor) -> Any:
    return f(*given.values(), beta, -100, 1.0)


_LAYERS = takes("x", "weight", "teacher", "teacher_weight", "labels")
_BETA = {"beta": 0.3}

CROSS_ENTROPY = Case(
    "cross-entropy, per token",
    Call("liger_kernel.ops.cross_entropy:LigerCrossEntropyFunction.apply", takes("x", "labels"), adapter=_per_token),
    (Call("plain/losses:cross_entropy", takes("x", "labels")),),
    _logits, EAGER, gradients=True, T=100,
)  # fmt: skip
SURE = Case(
    "cross-entropy, sure",
    Call("liger_kernel.ops.cross_entropy:LigerCrossEntropyFunction.apply", takes("x", "labels"), adapter=_mean),
    (Call("plain/losses:mean_cross_entropy", takes("x", "labels")),),
    _sure, FLOAT32, gradients=True, T=100, dtypes=NARROW,
)  # fmt: skip
LINEAR_CROSS_ENTROPY = Case(
    "linear cross-entropy, per token",
    Call("liger_kernel.ops.fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction.apply",
         takes("x", "weight", "bias", "labels"), adapter=_linear_per_token),
    (Call("plain/losses:linear_cross_entropy", takes("x", "weight", "bias", "labels")),),
    _layer, EAGER, gradients=True, T=100,
)  # fmt: skip
LINEAR_JSD = Case(
    "linear JSD",
    Call("liger_kernel.ops.fused_linear_jsd:LigerFusedLinearJSDFunction.apply", _LAYERS, _BETA, adapter=_jsd),
    (Call("plain/losses:linear_jsd", _LAYERS, _BETA),),
    _two, EAGER, gradients=True,
)  # fmt: skip
DISTILLED = Case(
    "distillation, JSD",
    Call("liger_kernel.chunked_loss.jsd_loss:LigerFusedLinearJSDFunction.apply", _LAYERS, _BETA, adapter=_distilled),
    (Call("plain/losses:distilled", _LAYERS, _BETA),),
    _near, EAGER, gradients=True,
)  # fmt: skip
KL = Case(
    "KL divergence, mean",
    Call("liger_kernel.ops.kl_div:LigerKLDivLossFunction.apply", takes("x", "y"), adapter=_kl_mean),
    (Call("plain/losses:kl_mean", takes("x", "y")),),
    _probabilities, FLOAT32, T=100, dtypes=("float32",),
    tolerance={"float32": Tolerance(1e-8, 1e-6)},
)  # fmt: skip
LAYER_NORM = Case(
    "layer norm",
    Call("liger_kernel.ops.layer_norm:LigerLayerNormFunction.apply", takes("x", "weight", "bias"), {"eps": 1e-6},
         positional=True),
    (Call("plain/norms:layer_norm", takes("x", "weight", "bias"), {"eps": 1e-6}),),
    _rows, FLOAT32, gradients=True, T=100, dtypes=("float32",),
    tolerance={"float32": Tolerance(1e-5, 1e-5)},
)  # fmt: skip
RMS_NORM = Case(
    "RMS norm, llama, many rows",
    Call("liger_kernel.ops.rms_norm:LigerRMSNormFunction.apply", takes("x", "weight"), adapter=_llama),
    (Call("plain/norms:rms_norm", takes("x", "weight"), {"eps": 1e-6}),),
    _many_rows, EAGER, gradients=True, T=32768, back=32768, dtypes=("bfloat16",), tolerance=LLAMA,
)  # fmt: skip
ROPE = Case(
    "rotary embedding",
    Call("liger_kernel.ops.rope:LigerRopeFunction.apply", takes("q", "k", "cos", "sin"), positional=True),
    (Call("plain/rotary:rope", takes("q", "k", "cos", "sin")),),
    _heads, FLOAT32, gradients=True, T=100,
    tolerance={"float32": Tolerance(1e-5, 1e-5), "bfloat16": Tolerance(1e-1, 1e-5)},
)  # fmt: skip


def _pair(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    draw = drawn(seed)
    return {name: draw(T, D).to(dtype) for name in ("a", "b")}


def _one(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    return {"x": (2 * drawn(seed)(T, D)).to(dtype)}


def _images(seed: int, dtype: Any, T: int, C: int = 6) -> Tensors:
    draw = drawn(seed)
    made = {"x": 1 + draw(2, C, T), "weight": 1 + draw(C) / 4, "bias": draw(C) / 4}
    return {name: x.to(dtype) for name, x in made.items()}


def _polynomial(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    draw = drawn(seed)
    return {name: x.to(dtype) for name, x in (("x", draw(T, D)), ("weight", draw(3)), ("bias", draw(1)))}


def _dynamic(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    draw = drawn(seed)
    made = {"x": draw(T, D), "alpha": draw(1).exp(), "gamma": 1 + draw(D) / 4, "beta": draw(D)}
    return {name: x.to(dtype) for name, x in made.items()}


def _added(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    draw = drawn(seed)
    made = {"x": draw(T, D), "residual": draw(T, D), "weight": 1 + draw(D) / 4}
    return {name: x.to(dtype) for name, x in made.items()}


def _logarithms(seed: int, dtype: Any, T: int, V: int = 200) -> Tensors:
    draw = drawn(seed)
    return {name: draw(T, V).log_softmax(-1).to(dtype) for name in ("x", "y")}


def _two_distributions(seed: int, dtype: Any, T: int, V: int = 200) -> Tensors:
    draw = drawn(seed)
    return {name: draw(T, V).softmax(-1).to(dtype) for name in ("x", "y")}


def _short_rows(seed: int, dtype: Any, T: int) -> Tensors:
    made = _rows(seed, dtype, T)
    return {name: made[name] for name in ("x", "weight")}


def _gemma(f: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
    return f(x, weight, 1e-6, 1.0, "gemma", False)


def _copies(f: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    """The backward pass overwrites its inputs."""
    return f(a.clone(), b.clone())


def _divergence(f: Any, x: torch.Tensor, y: torch.Tensor, beta: float) -> Any:
    return f(x, y, None, beta)


def _ops(operation: str, path: str, names: tuple[str, ...], reference: str, inputs: Any, **more: Any) -> Case:
    """A function of liger_kernel.ops, which takes these inputs in order, and then `fixed`; the reference takes `fixed`
    by their names.
    """
    fixed = more.pop("fixed", {})
    kernel = Call(f"liger_kernel.ops.{path}.apply", takes(*names), more.pop("given", fixed), positional=True)
    if "adapter" in more:
        kernel = replace(kernel, positional=False, adapter=more.pop("adapter"))
    return Case(operation, kernel, (Call(f"plain/{reference}", takes(*names), fixed),), inputs, FLOAT32,
                gradients=True, T=100, **more)  # fmt: skip


CASES = (
    CROSS_ENTROPY, LINEAR_CROSS_ENTROPY, LINEAR_JSD, DISTILLED, KL, LAYER_NORM, ROPE, SURE,
    _ops("RMS norm, llama", "rms_norm:LigerRMSNormFunction", ("x", "weight"), "norms:rms_norm", _short_rows,
         adapter=_llama, given={}, fixed={"eps": 1e-6}),
    _ops("RMS norm, gemma", "rms_norm:LigerRMSNormFunction", ("x", "weight"), "norms:rms_norm", _short_rows,
         adapter=_gemma, given={}, fixed={"eps": 1e-6, "offset": 1.0}),
    _ops("GEGLU", "geglu:LigerGELUMulFunction", ("a", "b"), "layers:geglu", _pair, adapter=_copies),
    _ops("SwiGLU", "swiglu:LigerSiLUMulFunction", ("a", "b"), "layers:swiglu", _pair, adapter=_copies),
    _ops("squared ReLU", "relu_squared:LigerReLUSquaredFunction", ("x",), "layers:relu_squared", _one),
    _ops("softmax", "softmax:LigerSoftmaxFunction", ("x",), "layers:softmax", _one),
    _ops("dynamic tanh", "dyt:LigerDyTFunction", ("x", "alpha", "gamma", "beta"), "layers:dynamic_tanh", _dynamic),
    _ops("group norm", "group_norm:LigerGroupNormFunction", ("x", "weight", "bias"), "norms:group_norm", _images,
         given={"channels": 6, "groups": 2, "eps": 1e-6}, fixed={"groups": 2, "eps": 1e-6}),
    _ops("RMS norm of a sum", "fused_add_rms_norm:LigerFusedAddRMSNormFunction", ("x", "residual", "weight"),
         "norms:add_rms_norm", _added, fixed={"eps": 1e-6}),
    _ops("norm of powers", "poly_norm:LigerPolyNormFunction", ("x", "weight", "bias"), "norms:poly_norm", _polynomial,
         given={"eps": 1e-6, "in_place": False}, fixed={"eps": 1e-6}),
    _ops("JSD", "jsd:LigerJSDFunction", ("x", "y"), "losses:jsd", _logarithms, adapter=_divergence, given=_BETA,
         fixed=_BETA),
    _ops("total variation", "tvd:LigerTVDLossFunction", ("x", "y"), "losses:tvd", _two_distributions),
)  # fmt: skip


WRONG = (
    Wrong(LIGER, "6cdc93de", "1c0c75c3", "every chunk of tokens reads the labels of the first one",
          LINEAR_JSD, ("result", "dx", "dweight"), Truth("counted = labels != IGNORED", "index"),
          "behind the first chunk", wrong_in=("forward", "gradients"), dtypes=("float32",)),
    Wrong(LIGER, "c899cc72", "d7c78df1", "every row of a batch takes the angles of the first one",
          ROPE, ("rotated_q", "rotated_k", "dq"), Truth("cos.detach()[:, None]", "index"), "behind the first row",
          wrong_in=("forward", "gradients")),
    Wrong(LIGER, "21c8215b", "f4a51fb8", "columns behind the end of a row, 0 less its mean, are in its variance",
          LAYER_NORM, ("result", "dx", "dweight"), Truth("(centered * centered).mean(-1", "mask"),
          wrong_in=("forward", "gradients"), dtypes=("float32",)),
    Wrong(LIGER, "a6dc70de", "449f5cba", "beta is not passed on: both models weigh one half",
          replace(DISTILLED, inputs=_all_count), ("result", "dx", "dweight"),
          Truth("beta * to_target.sum(-1)", "factor"), wrong_in=("forward", "gradients"),
          dtypes=("float32", "float16")),
    Wrong(LIGER, "62a90541", "a089cd59", "the logarithm of a mean of probabilities that underflow",
          replace(DISTILLED, inputs=_far), ("result",), Truth("", "no edit"), "NaN", dtypes=("float32",)),
    Wrong(LIGER, "fe1ea95f", "33f7f487", "tokens without a label count in the divergence, and in what is divided by",
          DISTILLED, ("result", "dx", "dweight"), Truth("torch.where(counted, (hard + soft) / 2", "mask"),
          wrong_in=("forward", "gradients"), dtypes=("float32", "float16")),
    Wrong(LIGER, "5a0c4ca1", "05b43a14", "all tokens' gradients are times the first token's",
          CROSS_ENTROPY, ("dx",), Truth("torch.logsumexp(x, -1) - x.gather", "index"), "behind the first token",
          wrong_in=("gradients",), dtypes=("float32", "float16")),
    Wrong(LIGER, "e44a5fe8", "9ac26bb8", "all tokens' gradients are times the first token's, before they are added up",
          LINEAR_CROSS_ENTROPY, ("dx", "dweight", "dbias"),
          Truth("torch.logsumexp(logits, -1) - logits.gather", "index"), wrong_in=("gradients",),
          dtypes=("float32", "float16")),
    Wrong(LIGER, "91ae44ae", "be1cdc17", "the gradient of the right class is rounded before 1 is subtracted",
          SURE, ("dx",), Truth("torch.logsumexp(x, -1)", "cast"), "the right class", wrong_in=("gradients",),
          dtypes=NARROW),
    Wrong(LIGER, "0a627007", "7d54ff88", "the weight's gradient is added up over 16 rows in 16 bits",
          RMS_NORM, ("dweight",), Truth("normed * (weight.float() + offset)", "cast"), wrong_in=("gradients",),
          dtypes=("bfloat16",)),
    Wrong(LIGER, "8e2bd26f", "1dc65557", "the mean is over rows, not over elements",
          KL, ("result",), Truth("(y * (y.log() - x)).mean()", "factor"), dtypes=("float32",)),
)  # fmt: skip
