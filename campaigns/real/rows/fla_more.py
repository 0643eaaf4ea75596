"""More bugs of flash-linear-attention: losses, convolutions, RWKV-4, gradients of last states."""

from dataclasses import replace
from typing import Any

import torch

from campaigns.real import inputs as of
from campaigns.real.call import Call, takes
from campaigns.real.case import EAGER, FLOAT32, NARROW, Case
from campaigns.real.rows.fla import named
from campaigns.real.wrong import Truth, Wrong

FLA = "flash-linear-attention"
STORED = {x: f"operands={x},stored=logits:{x}+teacher_logits:{x}" for x in NARROW}


def _group(seed: int, dtype: Any, T: int, B: int = 4) -> of.Tensors:
    """Logarithms of probabilities of a policy, an older and a reference one, and the rewards of a group."""
    draw = of.drawn(seed)
    logps = draw(B, T).sigmoid().log()
    kept = torch.arange(T)[None] < torch.tensor([T, T - 5, T // 2, T - 1])[:, None]
    made = {"logps": logps, "ref_logps": logps + draw(B, T) / 4, "old_logps": logps + draw(B, T) / 4}
    return {name: x.to(dtype) for name, x in made.items()} | {"kept": kept, "rewards": draw(B).to(dtype)}


def _wrapped(seed: int, dtype: Any, T: int, V: int = 64) -> of.Tensors:
    draw = of.drawn(seed)
    return {"loss": draw(1)[0].exp().to(dtype), "logits": draw(2, T, V).to(dtype)}


def _state(seed: int, dtype: Any, T: int, B: int = 2, D: int = 64, W: int = 4) -> of.Tensors:
    draw = of.drawn(seed)
    return {"x": draw(B, T, D).to(dtype), "state": draw(B, D, W).to(dtype)}


def _strided(seed: int, dtype: Any, T: int, B: int = 2, D: int = 64) -> of.Tensors:
    """The gradient of the result lies channel by channel; a state from the tokens before."""
    return of.strided(seed, dtype, T, B, D) | {"state": of.drawn(seed + 2)(B, D, 4).to(dtype)}


def _rwkv4(seed: int, dtype: Any, T: int, C: int = 32) -> of.Tensors:
    draw = of.drawn(seed)
    made = {"w": draw(C) - 1, "u": draw(C), "k": draw(1, T, C), "v": draw(1, T, C)}
    return {name: x.to(dtype) for name, x in made.items()}


def _wide(seed: int, dtype: Any, T: int) -> of.Tensors:
    return of.plain(seed, dtype, T, D=128)


def _layers(seed: int, dtype: Any, T: int, V: int = 256, H: int = 32) -> of.Tensors:
    """A student's last layer and a teacher's, and a gradient of 1."""
    draw = of.drawn(seed)
    made = {"x": draw(T, H), "teacher": draw(T, H), "weight": draw(V, H) / 4, "teacher_weight": draw(V, H) / 4}
    return {name: x.to(dtype) for name, x in made.items()} | {"dresult": torch.ones(())}


def _grpo(f: Any, kept: torch.Tensor, beta: float, epsilon: float, **given: torch.Tensor) -> Any:
    return f(pad_mask=kept, logits_to_keep=kept.shape[1], beta=beta, epsilon=epsilon, **given)


def _last_state(f: Any, x: torch.Tensor, state: torch.Tensor) -> Any:
    weight = torch.ones(state.shape[1:], dtype=x.dtype, device=x.device)
    return f(x=x, weight=weight, initial_state=state, output_final_state=True)[1]


def _from_empty(f: Any, w: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """From a state of nothing: sums of 0, and a largest exponent of -1e38."""
    nothing = torch.zeros(k.shape[0], 3, 1, k.shape[2], dtype=torch.float32, device=k.device)
    nothing[:, 2] = -1e38
    return f(w, u, k, v, nothing)[0]


def _frozen_teacher(f: Any, **given: torch.Tensor) -> Any:
    teacher = {name: given.pop(name).detach() for name in ("target_x", "target_weight")}
    return f(**given, **teacher)


_GROUP = ("logps", "ref_logps", "old_logps", "kept", "rewards")
_CLIP = {"beta": 0.2, "epsilon": 0.2}
_SIMPLE = named("simple GLA, tokens")
GRPO = Case(
    "GRPO, old probabilities",
    Call("fla.modules.grpo:grpo_loss_with_old_logps", takes(*_GROUP), _CLIP, adapter=_grpo),
    (Call("plain/losses:grpo", takes(*_GROUP), _CLIP),),
    _group, EAGER, gradients=True, T=100,
)  # fmt: skip
L2_WRAP = Case(
    "L2 wrap", Call("fla.modules.l2warp:L2Wrap.apply", takes("loss", "logits"), {"factor": 0.01}, positional=True),
    (Call("plain/losses:l2_wrapped", takes("loss", "logits"), {"factor": 0.01}),),
    _wrapped, EAGER, gradients=True, T=100,
)  # fmt: skip
LAST_TOKENS = Case(
    "convolution, state of a short sequence",
    Call("fla.modules.conv.causal_conv1d:causal_conv1d", takes("x", "state"), adapter=_last_state),
    (Call("plain/scans:convolution_state", takes("x", "state")),),
    _state, FLOAT32, gradients=True, T=2, back=2,
)  # fmt: skip
FROM_STATE = Case(
    "convolution, from a state",
    Call("fla.modules.conv.causal_conv1d:causal_conv1d", takes("x", "weight", "bias", initial_state="state"),
         {"activation": "silu"}, results=(0,)),
    (Call("plain/scans:convolution", takes("x", "weight", "bias", "state")),),
    _strided, FLOAT32, gradients=True, T=100, rounds="saved",
)  # fmt: skip
RWKV4 = Case(
    "RWKV-4", Call("fla.ops.rwkv4.fused_recurrent:fused_recurrent_rwkv4", takes("w", "u", "k", "v"),
                   adapter=_from_empty),
    (Call("plain/scans:rwkv4", takes("w", "u", "k", "v")),),
    _rwkv4, FLOAT32, gradients=True, T=64, back=64, dtypes=("float32",),
)  # fmt: skip
KL = Case(
    "linear KL divergence",
    Call("fla.modules.fused_kl_div:fused_kl_div_loss",
         takes("x", "weight", target_x="teacher", target_weight="teacher_weight"), adapter=_frozen_teacher),
    (Call("plain/losses:linear_kl", takes("x", "teacher", "weight", "teacher_weight")),),
    _layers, STORED, gradients=True, T=256, back=256, dtypes=NARROW,
)  # fmt: skip

WRONG = (
    Wrong(FLA, "83fbc1f1", "7bc42455", "the loss has the other sign",
          GRPO, ("result", "dlogps", "dref_logps", "dold_logps", "drewards"),
          Truth("-(gain * kept).sum() / kept.sum()", "factor"), wrong_in=("forward", "gradients"),
          dtypes=("float32", "float16")),
    Wrong(FLA, "6e3e2469", "b9bdbcf2", "the penalty's gradient is not times that of the loss",
          L2_WRAP, ("dlogits",),
          # was "omitted part": 1 in the place of the gradient and a factor left out are the same
          Truth("factor / 2 * (logits.max(-1).values ** 2).mean()", "operand", changed=True),
          "the largest logit of each token", wrong_in=("gradients",), dtypes=("float32", "float16")),
    Wrong(FLA, "4bd2a5cf", "a252c17d", "of a sequence shorter than a window, gradients of the last state go elsewhere",
          LAST_TOKENS, ("dx", "dstate"), Truth("torch.cat([state, x.transpose(1, 2)], -1)", "index"),
          wrong_in=("gradients",)),
    Wrong(FLA, "a252c17d", "6d80721f", "the gradient of the state reads a strided gradient as if it were contiguous",
          FROM_STATE, ("dstate",), Truth("torch.cat([state[:, :, 1:].transpose(1, 2), x], 1)", "index"),
          wrong_in=("gradients",)),
    Wrong(FLA, "6081b7df", "a0c938eb", "dw lacks the derivative of -exp(w)",
          RWKV4, ("dw",), Truth("torch.exp(w)", "omitted part"), wrong_in=("gradients",), dtypes=("float32",)),
    Wrong(FLA, "15a6b322", "31293264", "the last state's part of dg is added up over all heads",
          replace(_SIMPLE, back=64, kernel=replace(_SIMPLE.kernel, results=(1,)),
                  references=tuple(replace(one, fixed={"output_final_state": True}, results=(1,))
                                   for one in _SIMPLE.references)),
          ("dg",), Truth("S * gate.unsqueeze(-1)", "index"), wrong_in=("gradients",)),
    Wrong(FLA, "30c9dac5", "e4c7f880", "blocks of values write dq and dk over each other",
          # as of the other row of this commit
          replace(named("attention"), inputs=_wide), ("dq", "dk"),
          Truth("output = torch.einsum", "omitted part", changed=True),
          "where there are less than 160 KiB of shared memory", wrong_in=("gradients",), dtypes=("float32",)),
    Wrong(FLA, "fa3c0483", "794f183c", "the weight's gradient is added up over chunks of tokens in 16 bits",
          KL, ("dweight",), Truth("x @ weight.T", "cast"), wrong_in=("gradients",), dtypes=NARROW),
)  # fmt: skip
