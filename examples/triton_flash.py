"""Flash attention forward in Triton, with probes.

On the CPU, in Triton's interpreter, and on a GPU:

TRITON_INTERPRET=1 workbench diff examples/triton_flash.py:attention --arrays torch --dtype float16 --causal
workbench diff examples/triton_flash.py:attention --arrays torch,device=cuda --dtype bfloat16 --causal

`stale_acc` in the place of `attention` has a fault: the accumulator is not rescaled when the running maximum grows.
"""

import math

import torch
import triton
import triton.language as tl

from workbench.foreign.probes.triton import buffers, probe, stages

BLOCK_Q, BLOCK_K = 64, 32


@triton.jit
def flash_forward(
    q, k, v, out, lse, q_strides, k_strides, v_strides, out_strides,
    heads, kv_heads, seqlen_q, seqlen_k, scale_log2, probes,
    CAUSAL: tl.constexpr, RESCALES_ACC: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head; strides are those of [batch, head, seqlen, dim]."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    kv_h = h // (heads // kv_heads)
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    dims = tl.arange(0, DIMS)
    q_tile = tl.load(
        q + b * q_strides[0] + h * q_strides[1] + rows[:, None] * q_strides[2] + dims[None, :] * q_strides[3],
        mask=(rows[:, None] < seqlen_q) & (dims[None, :] < HEAD_DIM),
        other=0.0,
    )
    row_max = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_Q,), tl.float32)
    acc = tl.zeros((BLOCK_Q, DIMS), tl.float32)
    for tile in range(tl.cdiv(seqlen_k, BLOCK_K)):
        keys = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = (keys[:, None] < seqlen_k) & (dims[None, :] < HEAD_DIM)
        k_rows = k + b * k_strides[0] + kv_h * k_strides[1] + keys[:, None] * k_strides[2]
        v_rows = v + b * v_strides[0] + kv_h * v_strides[1] + keys[:, None] * v_strides[2]
        k_tile = tl.load(k_rows + dims[None, :] * k_strides[3], mask=inside, other=0.0)
        v_tile = tl.load(v_rows + dims[None, :] * v_strides[3], mask=inside, other=0.0)
        visible = keys[None, :] < seqlen_k
        if CAUSAL:  # bottom-right: the last query sees every key
            visible = visible & (keys[None, :] <= rows[:, None] + seqlen_k - seqlen_q)

        qk = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        probe(probes.qk, (b, h, rows[:, None], keys[None, :]), qk)
        scores = tl.where(visible, qk * scale_log2, float("-inf"))
        probe(probes.scores, (b, h, rows[:, None], keys[None, :]), scores)

        previous_max = row_max
        row_max = tl.maximum(row_max, tl.max(scores, 1))
        probe(probes.row_max, (b, h, rows, tile), row_max)
        finite_max = tl.where(row_max == float("-inf"), 0.0, row_max)  # a row that has seen no key: not -inf - -inf
        correction = tl.exp2(previous_max - finite_max)
        probe(probes.correction, (b, h, rows, tile), correction)
        probs = tl.exp2(scores - finite_max[:, None])
        probe(probes.probs, (b, h, rows[:, None], keys[None, :]), probs)
        probs_cast = probs.to(v_tile.dtype)
        probe(probes.probs_cast, (b, h, rows[:, None], keys[None, :]), probs_cast)

        row_sum = row_sum * correction + tl.sum(probs, 1)
        probe(probes.row_sum, (b, h, rows, tile), row_sum)
        if RESCALES_ACC:
            acc = acc * correction[:, None]
        acc = tl.dot(probs_cast, v_tile, acc, input_precision="ieee")
        probe(probes.acc, (b, h, rows[:, None], tile, dims[None, :]), acc)

    total = tl.where(row_sum == 0.0, 1.0, row_sum)  # a row without keys: out 0, lse -inf
    tl.store(
        out + b * out_strides[0] + h * out_strides[1] + rows[:, None] * out_strides[2] + dims[None, :] * out_strides[3],
        (acc / total[:, None]).to(out.dtype.element_ty),
        mask=(rows[:, None] < seqlen_q) & (dims[None, :] < HEAD_DIM),
    )
    ln2 = 0.6931471805599453
    tl.store(lse + (b * heads + h) * seqlen_q + rows, (row_max + tl.log2(total)) * ln2, mask=rows < seqlen_q)


def attention(q, k, v, *, scale, causal, rescales_acc=True, probes=True):
    """What attention leaves behind; q is [batch, heads, seqlen_q, head_dim], k and v [batch, kv_heads, seqlen_k,
    head_dim], torch tensors of any strides.
    """
    (batch, heads, seqlen_q, head_dim), kv_heads, seqlen_k = q.shape, k.shape[1], k.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    probes = buffers("qk,scores,row_max,correction,probs,probs_cast,row_sum,acc", q, k, block_k=BLOCK_K, on=probes)
    flash_forward[(triton.cdiv(seqlen_q, BLOCK_Q), batch * heads)](
        q, k, v, out, lse, q.stride(), k.stride(), v.stride(), out.stride(),
        heads, kv_heads, seqlen_q, seqlen_k, scale * math.log2(math.e), probes,
        CAUSAL=causal, RESCALES_ACC=rescales_acc, HEAD_DIM=head_dim, DIMS=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_Q=BLOCK_Q, BLOCK_K=BLOCK_K,
    )  # fmt: skip
    contract = {"block_k": BLOCK_K, "base2": True, "scores_dtype": "float32", "probs_dtype": str(q.dtype)[6:]}
    return {"out": out, "lse": lse, "contract": contract, **stages(probes)}


def stale_acc(q, k, v, *, scale, causal):
    """`attention` with the fault."""
    return attention(q, k, v, scale=scale, causal=causal, rescales_acc=False)
