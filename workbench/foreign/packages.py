"""Calls of packages' functions that take a case by other means than keywords: masks, score_mods, plans."""

import importlib
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.case import masks
from workbench.case.memory import cu_seqlens
from workbench.case.mods import function_of
from workbench.case.stages import LSE, OUT
from workbench.floats import DTYPES
from workbench.foreign.keywords import Asked
from workbench.refusal import Refusal

#: bytes of FlashInfer's workspace, as its documentation recommends
WORKSPACE = 128 << 20
#: what the compiler of flex_attention says where it has no kernel for the widths of a case
_LIMIT = re.compile("(NotImplementedError: NYI|No valid triton configs).*")


@dataclass(frozen=True)
class Call:
    """A call that is about to be made."""

    function: Callable[..., Any]
    asked: Asked
    q: Any
    k: Any
    v: Any
    over: Callable[[np.ndarray], Any]  #: an array of NumPy's as one of the function's library, as q, k and v are


def sdpa(call: Call) -> Any:
    """torch's scaled_dot_product_attention: what is_causal, which counts from the top left, does not say is a mask."""
    case, asked, options = call.asked.case, call.asked, {}
    added = masks.attn_bias(case, asked.read)
    if added is not None:
        bias = _float_mask(np.asarray(added.bias), case.dtype, on_gpu=call.q.is_cuda)
        options["attn_mask"] = call.over(np.where(asked.seen, bias, np.array(-np.inf, bias.dtype)))
    elif asked.hidden_beside_causal or (case.causal and np.any(case.diagonals != 0)):
        options["attn_mask"] = call.over(np.ascontiguousarray(asked.seen))
    elif case.causal:
        options["is_causal"] = True
    if case.kv_heads != case.heads:
        options["enable_gqa"] = True
    return call.function(call.q, call.k, call.v, scale=case.scale, **options)


def _float_mask(bias: np.ndarray, dtype: str, *, on_gpu: bool) -> np.ndarray:
    """A bias as attn_mask: in the dtype of q where that holds it, which torch wants on a GPU; else in float32."""
    narrow = bias.astype(DTYPES[dtype])
    if np.array_equal(narrow.astype(np.float64), bias.astype(np.float64)):
        return narrow
    if on_gpu:
        raise Refusal(
            f"on a GPU, scaled_dot_product_attention takes a float mask only in the dtype of q, and {dtype} cannot "
            "represent what this case adds to scores. Choose dtype=float32, or slopes and lengths whose products "
            f"{dtype} can represent"
        )
    return bias.astype(np.float32)


def flex(call: Call) -> Any:
    """torch's flex_attention: what hides keys is a block_mask, what changes scores a score_mod. On a GPU it is
    compiled, as its Triton kernels are used; on a CPU it is run as it is.
    """
    torch, module = importlib.import_module("torch"), importlib.import_module("torch.nn.attention.flex_attention")
    case, options = call.asked.case, {}
    if (mask_mod := _mask_mod(call)) is not None:
        sizes = (case.batch, case.heads, case.seqlen_q, case.seqlen_k)
        options["block_mask"] = module.create_block_mask(mask_mod, *sizes, device=str(call.q.device))
    if (score_mod := _score_mod(call)) is not None:
        options["score_mod"] = score_mod
    if case.kv_heads != case.heads:
        options["enable_gqa"] = True
    torch.compiler.reset()  # functions of other cases, which would count as recompilations of this one
    function = torch.compile(call.function, dynamic=False) if call.q.is_cuda else call.function
    aux = module.AuxRequest(lse=True)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # that it is not compiled
        try:
            out, found = function(call.q, call.k, call.v, scale=case.scale, return_aux=aux, **options)
        except Exception as error:
            if limit := _LIMIT.search(str(error)):
                raise Refusal(f"compiled, flex_attention does not take this case: {limit[0]}") from None
            raise
    return {OUT: out, LSE: found.lse}


def _mask_mod(call: Call) -> Callable[..., Any] | None:
    """What hides keys, as a mask_mod; None where nothing does."""
    asked = call.asked
    case, tests = asked.case, []
    left, right = case.sides
    diagonals = call.over(case.diagonals)
    if left != -1:
        tests.append(lambda b, h, q, k: k >= q + diagonals[b] - left)
    if right != -1:
        tests.append(lambda b, h, q, k: k <= q + diagonals[b] + right)
    if asked.uneven:
        rows, keys = call.over(case.lengths_q), call.over(case.lengths_k)
        tests.append(lambda b, h, q, k: (q < rows[b]) & (k < keys[b]))
    if case.mask_mod is not None:
        tests.append(function_of(case.mask_mod, "mask_mod"))
    if (own := asked.own_mask) is not None:
        put_in = call.over(np.ascontiguousarray(masks.spread(case, own)))
        tests.append(lambda b, h, q, k: put_in[b, h, q, k])
    if not tests:
        return None
    return importlib.import_module("torch.nn.attention.flex_attention").and_masks(*tests)


def _score_mod(call: Call) -> Callable[..., Any] | None:
    """What changes scores, as a score_mod: the softcap, the case's own, a bias, ALiBi; None where nothing does."""
    torch = importlib.import_module("torch")
    case, read, steps = call.asked.case, call.asked.read, []
    if (cap := case.softcap) is not None:
        steps.append(lambda score, b, h, q, k: cap * torch.tanh(score / cap))
    if case.score_mod is not None:
        steps.append(function_of(case.score_mod, "score_mod"))
    if "bias" in read:
        bias = call.over(np.ascontiguousarray(masks.spread(case, read["bias"])))
        steps.append(lambda score, b, h, q, k: score + bias[b, h, q, k])
    if case.slopes is not None:
        slopes, diagonals = call.over(case.slopes), call.over(case.diagonals)
        if case.alibi_form == "column":
            steps.append(lambda score, b, h, q, k: score + slopes[h] * k)
        else:
            steps.append(lambda score, b, h, q, k: score - slopes[h] * abs(k - q - diagonals[b]))
    if not steps:
        return None

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        for step in steps:
            score = step(score, b, h, q, k)
        return score

    return score_mod


def xformers(call: Call) -> Any:
    """xFormers' memory_efficient_attention: what hides keys is an object of its own."""
    objects = importlib.import_module("xformers.ops.fmha.attn_bias")
    case = call.asked.case
    bottom_right = case.causal_alignment == "bottom-right" and case.seqlen_q != case.seqlen_k
    bias = None
    if case.window is not None:
        further = case.seqlen_q + case.seqlen_k  # than any key is from the diagonal
        left, right = (further if side == -1 else side for side in case.window)
        bias = objects.LocalAttentionFromBottomRightMask(window_left=left, window_right=right)
    elif case.causal:
        bias = objects.LowerTriangularFromBottomRightMask() if bottom_right else objects.LowerTriangularMask()
    return call.function(call.q, call.k, call.v, attn_bias=bias, scale=case.scale)


def fla(call: Call) -> Any:
    """flash-linear-attention's parallel_attn, [b, s, h, d]: its window counts the query's own key, and sequences of
    several lengths lie behind each other in one batch (fla/ops/attn/parallel.py).
    """
    case, options, given = call.asked.case, dict[str, Any](), (call.q, call.k, call.v)
    if (left := case.sides[0]) != -1:
        options["window_size"] = left + 1
    if case.sink_logits is not None:
        options["sink_bias"] = call.over(case.sink_logits)
    if not call.asked.uneven:
        return call.function(*given, scale=case.scale, **options)
    rows = call.over(np.flatnonzero(np.arange(case.seqlen_q) < case.lengths_q[:, None]))
    options["cu_seqlens"] = call.over(cu_seqlens(case.lengths_q).astype(np.int64))
    (packed,) = call.function(*(x.flatten(0, 1)[rows][None] for x in given), scale=case.scale, **options)
    boxes = packed.new_zeros(case.batch * case.seqlen_q, *packed.shape[1:]).index_put((rows,), packed)
    return boxes.unflatten(0, (case.batch, case.seqlen_q))


def jax(call: Call) -> Any:
    """JAX's dot_product_attention: is_causal and local_window_size count from the top left; what they do not say is a
    mask.
    """
    asked, case = call.asked, call.asked.case
    options = {"bias": call.over(asked.read["bias"])} if "bias" in asked.read else {}
    if "seqlens_q" in asked.uneven:
        options["query_seq_lengths"] = call.over(case.lengths_q.astype(np.int32))
    if "seqlens_k" in asked.uneven:
        options["key_value_seq_lengths"] = call.over(case.lengths_k.astype(np.int32))
    by_diagonal = case.causal or case.window is not None
    if "mask" in asked.read or (by_diagonal and np.any(case.diagonals != 0)):
        options["mask"] = call.over(np.ascontiguousarray(asked.seen))
    else:
        options["is_causal"] = case.causal
        if case.window is not None:
            sides = (case.seqlen_q + case.seqlen_k if side == -1 else side for side in case.window)
            options["local_window_size"] = tuple(sides)
    return call.function(call.q, call.k, call.v, scale=case.scale, **options)


def flashinfer_decode(call: Call) -> Any:
    """FlashInfer's wrapper of decoding from pages, which is planned before it runs."""
    torch = importlib.import_module("torch")
    case, pages = call.asked.case, call.asked.pages
    assert pages is not None  # a rule of its adapter
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=call.q.device)
    wrapper = call.function(workspace, kv_layout=case.kv_layout)
    wrapper.plan(
        *(call.over(x) for x in (pages.indptr, pages.indices, pages.last_page_len)),
        case.heads, case.kv_heads, case.head_dim, case.page_size,
        window_left=-1 if case.window is None else case.window[0],
        logits_soft_cap=case.softcap,
        q_data_type=call.q.dtype,
        kv_data_type=call.k.dtype,
        sm_scale=case.scale,
    )  # fmt: skip
    return wrapper.run(call.q, (call.k, call.v), return_lse=True)
