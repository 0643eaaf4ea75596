"""mamba: the state space model of Mamba-2 by chunks, in Triton. What needs its compiled scan and convolution is left
out.
"""

from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from campaigns.real.call import Call, takes
from campaigns.real.case import FLOAT32, SCALED, Case
from campaigns.real.inputs import Tensors, drawn
from campaigns.real.project import Project, Tolerance
from campaigns.real.wrong import Truth, Wrong

MAMBA = "mamba"
PROJECT = Project(
    name=MAMBA, owner="state-spaces", newest="e9594ce1", paths=("mamba_ssm",),
    tolerance={"": Tolerance(3e-3, 1e-2)},
    stubs=("mamba_ssm", "mamba_ssm.ops"),
)  # fmt: skip


def _ssd(seed: int, dtype: Any, T: int, H: int = 2, D: int = 32, N: int = 16) -> Tensors:
    """Step sizes around 0.3, decays of up to a half a token."""
    draw = drawn(seed)
    made = {"x": draw(1, T, H, D), "B": draw(1, T, 1, N), "C": draw(1, T, 1, N)}
    made = {name: x.to(dtype) for name, x in made.items()}
    return made | {"step": F.softplus(draw(1, T, H) - 1), "A": -(1 + torch.arange(float(H)))}


def _large_steps(seed: int, dtype: Any, T: int) -> Tensors:
    """Step sizes before the softplus, a tenth of them beyond 20, and slow decays."""
    made = _ssd(seed, dtype, T)
    generator = torch.Generator().manual_seed(seed)
    step = drawn(seed + 1)(*made["step"].shape)
    large = torch.rand(step.shape, generator=generator) < 0.1
    return made | {"step": torch.where(large, 25 + step, step - 2), "A": made["A"] / 64}


def _steep(seed: int, dtype: Any, T: int) -> Tensors:
    """Decays of exp(-200) over a chunk."""
    made = _ssd(seed, dtype, T)
    return made | {"A": 8 * made["A"]}


def _packed(seed: int, dtype: Any, T: int) -> Tensors:
    """Two sequences in one row, that meet within a chunk."""
    return _ssd(seed, dtype, T) | {"sequence": (torch.arange(T) >= 2 * T // 5).int()[None]}


def _scan(f: Any, **given: Any) -> Any:
    return f(given["x"], given["step"], given["A"], given["B"], given["C"], 64)


def _softplus(f: Any, **given: Any) -> Any:
    return f(given["x"], given["step"], given["A"], given["B"], given["C"], 64, dt_softplus=True)


def _of_sequences(f: Any, **given: Any) -> Any:
    return f(given["x"], given["step"], given["A"], given["B"], given["C"], 64, seq_idx=given["sequence"])


_TAKES = takes("x", "step", "A", "B", "C")
_PATH = "mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined"
SSD = Case(
    "state space model, chunks", Call(_PATH, _TAKES, adapter=_scan), (Call("plain/scans:ssd", _TAKES),),
    _ssd, SCALED, gradients=True,
)  # fmt: skip
SOFTPLUS = Case(
    "state space model, softplus", Call(_PATH, _TAKES, adapter=_softplus), (Call("plain/scans:ssd_softplus", _TAKES),),
    _large_steps, SCALED, gradients=True,
)  # fmt: skip
PACKED = Case(
    "state space model, several sequences",
    Call(_PATH, _TAKES | {"sequence": "sequence"}, adapter=_of_sequences),
    (Call("plain/scans:ssd_packed", _TAKES | {"sequence": "sequence"}),),
    _packed, SCALED, gradients=True, back=200,
)  # fmt: skip
STEEP = Case(
    "state space model, steep decays", Call(_PATH, _TAKES, adapter=_scan), (Call("plain/scans:ssd", _TAKES),),
    _steep, SCALED, gradients=True,
)  # fmt: skip


def _update(seed: int, dtype: Any, T: int, D: int = 64, N: int = 16) -> Tensors:
    """A token of each row of a batch; step sizes of a model as it is initialised, from 0.001 to 0.1."""
    draw = drawn(seed)
    step = torch.exp(torch.rand(T, D, generator=torch.Generator().manual_seed(seed)) * 4.6 - 6.9)
    made = {"state": draw(T, D, N), "x": draw(T, D), "step": step.expm1().log(), "B": draw(T, N), "C": draw(T, N)}
    return {name: x.to(dtype) for name, x in made.items()} | {"A": -(1 + torch.arange(float(N))).expand(D, N)}


def _gated(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    draw = drawn(seed)
    made = {"x": draw(T, D), "weight": 1 + draw(D) / 4, "z": draw(T, D)}
    return {name: x.to(dtype) for name, x in made.items()}


def _halves(seed: int, dtype: Any, T: int, D: int = 96) -> Tensors:
    return {"x": drawn(seed)(T, 2 * D).to(dtype)}


def _token(f: Any, state: torch.Tensor, **given: Any) -> Any:
    """With a bias and a skip of 0, whose strides it asks for; a copy of the state, which it overwrites."""
    last, names = state.clone(), ("x", "step", "A", "B", "C")
    nothing = torch.zeros(state.shape[1], dtype=state.dtype, device=state.device)
    return f(last, *(given[name] for name in names), D=nothing, dt_bias=nothing, dt_softplus=True), last


def _norm(f: Any, x: torch.Tensor, weight: torch.Tensor, z: torch.Tensor) -> Any:
    return f(x, weight, None, z, 1e-6, None, False)


_UPDATE = takes("state", "x", "step", "A", "B", "C")
_GATED = takes("x", "weight", "z")
CASES = (
    SSD, replace(SOFTPLUS, back=64), replace(PACKED, back=100), STEEP,
    Case("state update", Call("mamba_ssm.ops.triton.selective_state_update:selective_state_update", _UPDATE,
                              adapter=_token),
         (Call("plain/scans:state_update", _UPDATE),), _update, FLOAT32, T=4, dtypes=("float32",)),
    Case("RMS norm behind a gate", Call("mamba_ssm.ops.triton.layernorm_gated:rmsnorm_fn", _GATED, adapter=_norm),
         (Call("plain/norms:gated_rms_norm", _GATED, {"eps": 1e-6}),), _gated, FLOAT32, gradients=True, T=100),
    Case("SwiGLU", Call("mamba_ssm.ops.triton.k_activations:swiglu", takes("x"), positional=True),
         (Call("plain/layers:halves_swiglu", takes("x")),), _halves, FLOAT32, gradients=True, T=100),
)  # fmt: skip

WRONG = (
    Wrong(MAMBA, "0cce0fa6", "2e16fc30", "the gradient of a step size is taken for the step size, beyond 20",
          # was an operand: the gradient taken for a step is then clamped to `dt_min` as one, and that sets it to 0
          SOFTPLUS, ("dstep", "dA"), Truth("F.softplus(step)", "step", changed=True), "steps beyond 20",
          wrong_in=("gradients",)),
    Wrong(MAMBA, "74729d0f", "a6a1dae6", "with several sequences a decay is its logarithm, in the gradient of B",
          PACKED, ("dB", "dstep", "dA"), Truth("~seen[..., None], -torch.inf).exp()", "step"), wrong_in=("gradients",)),
    Wrong(MAMBA, "8f42a5e1", "bb3a82a7", "tokens behind a partial last chunk are not masked: 0 inf",
          STEEP, ("dx", "dstep"), Truth("", "no edit"), "NaN in the last chunk", wrong_in=("gradients",)),
)  # fmt: skip
