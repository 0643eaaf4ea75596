"""A differentiable forward pass as a backward pass: through autograd, with a gradient of out that is ours."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from workbench.arrays import as_numpy, handed_over, home
from workbench.case.options import Options
from workbench.foreign.adapters import adapter_of, lives
from workbench.foreign.arguments import arguments_of
from workbench.foreign.keywords import FEATURES, Asked
from workbench.foreign.layouts import BOX, PACKED, laid, unlaid
from workbench.foreign.packages import Call
from workbench.operations.run import OWN
from workbench.refusal import Refusal

#: inputs beside q, k and v that have gradients -> the stage of it
BESIDE: Mapping[str, str] = {"sinks": "dsink", "bias": "dbias", "alibi_slopes": "dslopes"}
#: those of them that most functions take for constants
CONSTANTS = ("alibi_slopes",)


def through_autograd(
    function: Callable[..., Any], name: str, asked: Asked, *, device: str | None = None, layout: str = BOX
) -> Callable[..., Any]:
    """The backward pass `function(q, k, v, out, lse, dout, **beside)`, which returns gradients, of a forward pass in
    torch that is called as `workbench.run` calls it on the case and the inputs that are `asked`; a function of a
    package as its adapter says. `layout`, bhsd or bshd, of arrays in boxes.

    It returns out, or out first of several; with a dlse among `beside` lse second. Raises Refusal where autograd does
    not see that these depend on what has a gradient (but on ALiBi's slopes, which most take for constants: then there
    is no dslopes), and for what a case has and the function does not take.
    """
    adapter, case = adapter_of(function), asked.case
    call = arguments_of(function, adapter, asked, {}, name, layout)
    if adapter is not None and adapter.arrays != "torch":
        raise Refusal(f"{name}, gradients: autograd needs torch arrays; it takes {adapter.arrays} arrays")
    lives_on = home("torch", device) if adapter is None else lives(adapter, Options(device=device), name)[1]
    if adapter is not None and adapter.rounds_operands(case, lives_on):
        raise Refusal(f"{name}, gradients: on a GPU it multiplies float32 as TF32; choose float16 or bfloat16")

    def over(x: np.ndarray) -> Any:
        return handed_over(np.array(x, order="C"), "torch", lives_on)

    def axes_of(one: str) -> str:
        if adapter is not None:
            return adapter.q if one == "q" else adapter.kv
        return PACKED if call.positional[one].ndim == len(PACKED) else layout

    lengths = {"q": case.lengths_q, "k": case.lengths_k, "v": case.lengths_k}
    rows = {"q": case.seqlen_q, "k": case.seqlen_k, "v": case.seqlen_k}
    shares = ("v",) if case.shared_kv else ()

    def backward(*given: Any, **beside: Any) -> Any:
        import torch

        leaves = {one: over(x).requires_grad_() for one, x in call.positional.items() if one not in shares}
        read = {**leaves, **{one: leaves["k"][..., : case.head_dim_v] for one in shares}}
        keywords = {key: over(x) if isinstance(x, np.ndarray) else x for key, x in call.keywords.items()}
        words = {what: next((word for word in FEATURES[what] if word in keywords), "") for what in BESIDE}
        leaves |= {what: keywords[word].requires_grad_() for what, word in words.items() if word}
        if adapter is None or adapter.call is None:
            made = function(*(read[one] for one in call.positional), **keywords)
        else:
            made = adapter.call(Call(function, asked, read["q"], read["k"], read["v"], over=over))
        of_out, of_lse = _results(made, name, "dlse" in beside)
        dout = as_numpy(given[5], "dout")
        pairs = [(of_out, over(laid(dout, call.axes["out"], case.lengths_q)))]
        if of_lse is not None:
            if call.axes["lse"] != "bhs" or (adapter is not None and adapter.base2):
                raise Refusal(f"{name}, gradients: dlse needs a base-e lse [batch, heads, queries]")
            pairs.append((of_lse, torch.where(torch.isinf(of_lse), 0.0, beside["dlse"].to(of_lse))))
        found = torch.autograd.grad(
            [x for x, _ in pairs], list(leaves.values()), [dx.reshape(x.shape).to(x.dtype) for x, dx in pairs],
            allow_unused=True,
        )  # fmt: skip
        gradients = {one: x for one, x in zip(leaves, found, strict=True) if x is not None or one not in CONSTANTS}
        if missing := [one for one, x in gradients.items() if x is None]:
            raise Refusal(f"{name}, gradients: no gradient reached {', '.join(missing)}")
        wide = {one: as_numpy(x, f"{name}: d{one}") for one, x in gradients.items()}
        names = {"q": "dq", "k": "dkv"} if shares else {"q": "dq", "k": "dk", "v": "dv"}
        stages = {name: unlaid(wide[one], axes_of(one), lengths[one], rows[one]) for one, name in names.items()}
        if "bias" in wide:  # with all its axes
            wide["bias"] = wide["bias"].reshape((1,) * (4 - wide["bias"].ndim) + wide["bias"].shape)
        stages |= {BESIDE[what]: wide[what] for what in BESIDE if what in wide}
        # what the backward pass kept of the forward pass, as it was stored or before, nobody saw
        told = {} if adapter is None else adapter.gradients.get(lives_on, {})
        if shares:  # autograd adds gradients as they were stored
            told = {**told, "parts_dtype": "inputs"}
        return {**stages, OWN: ["out", "lse"], "contract": told}

    return backward


def _results(made: Any, name: str, with_lse: bool) -> tuple[Any, Any]:
    """Out and, where it has a gradient of its own, lse."""
    if isinstance(made, Mapping):
        found = made.get("out"), made.get("lse")
    else:
        several = list(made) if isinstance(made, tuple | list) else [made]
        found = several[0], next(iter(several[1:]), None)
    for what, x in zip(("out", "lse")[: 1 + with_lse], found, strict=False):
        if not getattr(x, "requires_grad", False):
            raise Refusal(f"{name}, gradients: its {what} is detached: autograd recorded no path from q, k, v to it")
    return found[0], found[1] if with_lse else None
