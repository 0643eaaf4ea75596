"""A case of the backward pass as one of attention, whose forward pass runs through autograd; and the other way."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.case.case import Case
from workbench.case.fields import GIVEN
from workbench.case.inputs import by_name
from workbench.case.masks import spread, visible
from workbench.floats import DTYPES
from workbench.foreign.keywords import Asked
from workbench.operations.attention_backward import ATTENTION_BACKWARD
from workbench.operations.backward_inputs import forward
from workbench.operations.case import OperationCase
from workbench.refusal import Refusal

Arrays = Mapping[str, np.ndarray]
#: axis of the backward pass -> the field of a case
_FIELDS: Mapping[str, str] = {
    "b": "batch", "h": "heads", "g": "kv_heads", "q": "seqlen_q", "k": "seqlen_k", "d": "head_dim", "e": "head_dim_v",
}  # fmt: skip
#: inputs that a case of attention has as arrays
_READ = ("q", "k", "v", "bias", "mask", "dropout_mask")


def forward_case(of: OperationCase, inputs: Arrays) -> Asked:
    """The case of the forward pass before a backward pass, and what it reads."""
    numbers, lists = of.numbers, {"sinks": "sinks", "alibi_slopes": "alibi_slopes", "seqlens_k": "seqlens_k"}
    fields: dict[str, Any] = {field: of.sizes[axis] for axis, field in _FIELDS.items()}
    fields |= {name: numbers[name] for name in ("scale", "causal", "softcap", "dropout_p") if name in numbers}
    fields |= {field: tuple(inputs[name].tolist()) for name, field in lists.items() if name in inputs}
    if "seqlens_k" in fields:
        fields |= {"seqlens_q": (of.sizes["q"],) * of.sizes["b"], "seqlen_q": None, "seqlen_k": None}
    sides = tuple(numbers.get(f"window_{side}", -1) for side in ("left", "right"))
    fields |= {} if sides == (-1, -1) else {"window": sides}
    fields |= dict(of.functions)
    fields |= {"shared_kv": True} if numbers.get("shared_kv") else {}
    fields |= {"alibi_form": "column"} if numbers.get("alibi_column") else {}
    read = {name: inputs[name] for name in _READ if name in inputs}
    if "seqlens_k" in fields and max(fields["seqlens_k"]) < of.sizes["k"]:
        fields["seqlen_k"] = of.sizes["k"]
    return Asked(Case(dtype=of.dtype, distribution=GIVEN, seed=of.seed, **fields), read, read.get("mask"))


def backward_case(
    case: Case, inputs: Arrays | None = None, conventions: Mapping[str, Any] | None = None
) -> tuple[OperationCase, dict[str, np.ndarray]]:
    """The backward pass of a case of attention, and its inputs, with a normal dout; keys that neither causal masks nor
    windows from the bottom right hide are in a mask. Refusal for what it does not have.
    """
    read = by_name(case, inputs)
    if case.page_size is not None:
        raise Refusal(f"page_size={case.page_size}: a paged cache has no backward pass; leave out page_size")
    if case.codes is not None:
        raise Refusal(f"codes={case.codes}: quantisation has no gradient; leave out codes and give dequantised inputs")
    if case.dtype not in DTYPES:
        raise Refusal(f"dtype={case.dtype}: gradients support {', '.join(DTYPES)}")
    given = {name: np.ascontiguousarray(read[name]) for name in "qkv"}
    numbers: dict[str, float] = {"scale": case.scale} | ({"shared_kv": True} if case.shared_kv else {})
    numbers |= {name: x for name in ("softcap", "dropout_p") if (x := getattr(case, name)) is not None}
    given |= {name: x.astype(np.float32) for name, x in (("sinks", case.sink_logits), ("alibi_slopes", case.slopes))
              if x is not None}  # fmt: skip
    if "dropout_mask" in read:
        given["dropout_mask"] = np.ascontiguousarray(spread(case, read["dropout_mask"]))
    sizes = {axis: getattr(case, field) for axis, field in _FIELDS.items()}
    if "bias" in read:
        bias = read["bias"].reshape((1,) * (4 - read["bias"].ndim) + read["bias"].shape)
        if bias.dtype != DTYPES[case.dtype] or bias.shape[-1] != case.seqlen_k:
            wanted = f"gradients need a {case.dtype} bias with a column per key"
            raise Refusal(f"{wanted}; got {bias.dtype} {list(bias.shape)}")
        given["bias"] = bias
        sizes |= dict(zip("mnr", bias.shape, strict=False))
    plain = np.all(case.diagonals == case.seqlen_k - case.seqlen_q)
    if plain and not case.ragged and "mask" not in read:
        numbers |= {"causal": case.causal}
        left, right = case.window or (-1, -1)
        numbers |= {name: x for name, x in (("window_left", left), ("window_right", right)) if x != -1}
    else:
        given["mask"] = np.ascontiguousarray(spread(case, visible(case, read)))
        if case.ragged:
            there = np.arange(case.seqlen_q) < case.lengths_q[:, None]
            given["mask"] = given["mask"] & there[:, None, :, None]
    if case.slopes is not None:
        if case.alibi_form == "column":
            numbers["alibi_column"] = True
        elif not plain:
            raise Refusal("gradients support ALiBi distances only from the bottom right, the same for all sequences")
    optional = tuple(name for name in ATTENTION_BACKWARD.optional if name in given)
    functions = {} if case.score_mod is None else {"score_mod": case.score_mod}
    of = OperationCase(
        ATTENTION_BACKWARD, sizes, case.dtype, "", case.seed, numbers, conventions or {}, optional, functions
    )
    dout = np.random.default_rng([case.seed, 3]).standard_normal([of.sizes[axis] for axis in "bhqe"])
    if case.ragged:
        dout = dout * (np.arange(case.seqlen_q) < case.lengths_q[:, None])[:, None, :, None]
    whole = {**given, "dout": dout, **forward(of.setting, given)}
    return of, {name: whole[name].astype(of.dtype_of(name)) for name in of.takes}
