"""The faults that are known by name: bugs that real attention kernels had, and subtle ones."""

from collections.abc import Mapping, Sequence

from workbench.faults import Fault
from workbench.refusal import Refusal

CATALOGUE: Mapping[str, Fault] = {
    fault.id: fault
    for fault in (
        Fault(
            "reduce-double-counts-sum",
            "split_k",
            "the weight of partial_O is multiplied by partial_sum; merge_sum is not affected",
            "        weight = math.exp(partial_max[b, h, s, row] - m_safe)\n",
            "        weight = math.exp(partial_max[b, h, s, row] - m_safe) * partial_sum[b, h, s, row]\n",
            ("merge_weight",),
        ),
        Fault(
            "partial-no-masked-tile-guard",
            "split_k",
            "exp(-inf - (-inf)) in a fully masked tile",
            "m_safe = m if m > NEG_INF else float32(0)  # no key seen yet",
            "m_safe = m  # no key seen yet",
            ("correction", "probs"),
            needs={"causal": True},
            source="flash-attention 26d7d92f, mlx#2608",
        ),
        Fault(
            "flash-no-masked-tile-guard",
            "flash",
            "exp(-inf - (-inf)) in rows that see no key",
            "m_safe = m if m > NEG_INF else float32(0)  # no key seen yet",
            "m_safe = m  # no key seen yet",
            ("correction", "probs"),
            needs={"causal": True},
            source="mlx#2608",
        ),
        Fault(
            "partial-acc-uninitialised",
            "split_k",
            "the accumulator of the partial kernel is not zeroed",
            "    l = float32(0)\n    for i in range(DIMS):\n        acc[i] = float32(0)\n\n    tiles",
            "    l = float32(0)\n    for i in range(DIMS):\n        pass\n\n    tiles",
            ("acc",),
            "uninitialised-read",
            unwritten_memory=True,
            source="flashinfer 6cbaf6e26",
        ),
        Fault(
            "reduce-acc-uninitialised",
            "split_k",
            "the accumulator of the reduce kernel is not zeroed",
            "        acc[i] = float32(0)\n    for s in range(splits):\n        weight",
            "        pass\n    for s in range(splits):\n        weight",
            ("out",),
            "uninitialised-read",
            unwritten_memory=True,
            source="flashinfer 6cbaf6e26",
        ),
        Fault(
            "partial-offset-wrong-split",
            "split_k",
            "partial_O is stored at (split + 1) % splits",
            "partial_O[b, h, split, row, d] = acc[i]",
            "partial_O[b, h, (split + 1) % splits, row, d] = acc[i]",
            ("partial_O",),
            source="mlx#2152",
        ),
        Fault(
            "flash-no-correction",
            "flash",
            "the accumulator is not rescaled when the max moves",
            "acc[i] = acc[i] * correction",
            "acc[i] = acc[i]",
            ("acc",),
        ),
        Fault(
            "flash-stale-max",
            "flash",
            "probs use the max before this tile, once there is one",
            "p = math.exp(s_p[r, c] - m_safe)",
            "p = math.exp(s_p[r, c] - (m_prev if m_prev > NEG_INF else m_safe))",
            ("probs",),
        ),
        Fault(
            "flash-no-causal-mask",
            "flash",
            "the causal mask is forgotten",
            "if key >= seqlen_k or (causal and key > row + diagonal):",
            "if key >= seqlen_k:",
            ("scores",),
            needs={"causal": True},
        ),
        Fault(
            "flash-causal-off-by-one",
            "flash",
            "the causal mask hides the diagonal: > became >=",
            "(causal and key > row + diagonal)",
            "(causal and key >= row + diagonal)",
            ("scores",),
            needs={"causal": True},
        ),
        Fault(
            "flash-bshd-strides",
            "flash",
            "q, k and v are read as if stored [b, s, h, d]",
            "tile[r, d] = LOAD(x[b, h, row, d])",
            "tile[r, d] = LOAD(x[b, (row * x.shape[1] + h) // rows, (row * x.shape[1] + h) % rows, d])",
            ("qk", "acc"),
            source="pytorch#181151, mlx#2152",
        ),
        Fault(
            "flash-k-tile-stale",
            "flash",
            "tiles after the first reuse the previous K tile",
            "load_tile(s_kv, k, b, kv_h, first_key, seqlen_k, head_dim)",
            "load_tile(s_kv, k, b, kv_h, max(first_key - BLOCK_K, 0), seqlen_k, head_dim)",
            ("qk",),
            source="flashinfer#3276",
        ),
        Fault(
            "flash-scale-twice",
            "flash",
            "the scale is applied twice",
            "s = libdevice.fmul_rn(dot, scale)",
            "s = libdevice.fmul_rn(libdevice.fmul_rn(dot, scale), scale)",
            ("scores",),
            source="vllm#48016",
        ),
        Fault(
            "flash-probs-truncated",
            "flash",
            "the cast of probs to bfloat16 rounds toward zero",
            "p_cast = CAST(p)",
            "p_cast = libdevice.int_as_float(np.int32(libdevice.float_as_int(p) & -65536))",
            ("probs_cast",),
            needs={"dtype": "bfloat16", "probs_dtype": "bfloat16"},
        ),
        Fault(
            "partial-O-float16",
            "split_k",
            "partial_O is rounded to float16 before it is stored",
            "partial_O[b, h, split, row, d] = acc[i]",
            "partial_O[b, h, split, row, d] = libdevice.half2float(libdevice.float2half_rn(acc[i]))",
            ("partial_O",),
        ),
        Fault(
            "flash-scale-float16",
            "flash",
            "the scale is rounded to float16, in which 1/sqrt(32) is not exact",
            "s = libdevice.fmul_rn(dot, scale)",
            "s = libdevice.fmul_rn(dot, libdevice.half2float(libdevice.float2half_rn(scale)))",
            ("scores",),
            needs={"head_dim": 32},
        ),
        Fault(
            "flash-max-before-scale",
            "flash",
            "the max is taken of the products before they are scaled: out stays right until exp underflows",
            "tile_max = max(tile_max, s)",
            "tile_max = max(tile_max, dot if s > NEG_INF else s)",
            ("row_max",),
        ),
        Fault(
            "flash-exp-bfloat16",
            "flash",
            "exp has the precision of bfloat16",
            "p = math.exp(s_p[r, c] - m_safe)",
            "p = libdevice.int_as_float("
            "np.int32(libdevice.float_as_int(math.exp(s_p[r, c] - m_safe)) + 0x8000 & -65536))",
            ("probs",),
        ),
        Fault(
            "flash-out-truncated",
            "flash",
            "out is rounded to bfloat16 toward zero",
            "out[b, h, row, d] = STORE(acc[i] / l if l != float32(0) else float32(0))",
            "out[b, h, row, d] = libdevice.float_as_int(acc[i] / l if l != float32(0) else float32(0)) >> 16",
            ("out",),
            needs={"dtype": "bfloat16"},
        ),
        Fault(
            "flash-lse-no-log",
            "flash",
            "lse adds row_sum itself, not its logarithm",
            "lse[b, h, row] = m + math.log(l) if",
            "lse[b, h, row] = m + l if",
            ("lse",),
        ),
        Fault(
            "flash-lse-base-2",
            "flash",
            "lse is a logarithm to base 2",
            "lse[b, h, row] = m + math.log(l) if",
            "lse[b, h, row] = (m + math.log(l)) * float32(1.4426950408889634) if",
            ("lse",),
        ),
        Fault(
            "flash-no-barrier-before-load",
            "flash",
            "no barrier before K overwrites the tile in which other threads still read V",
            "        cuda.syncthreads()  # protects V of the previous tile",
            "        pass  # protects V of the previous tile",
            finding="race",
        ),
        Fault(
            "flash-no-barrier-after-load",
            "flash",
            "no barrier between the load of K and its use",
            "        cuda.syncthreads()  # s_q and K are complete",
            "        pass  # s_q and K are complete",
            finding="race",
        ),
        Fault(
            "flash-tile-partly-written",
            "flash",
            "the rows of a tile beyond the last key are not zeroed",
            "            tile[r, d] = float32(0)",
            "            pass",
            finding="uninitialised-read",
            seqlen=100,
        ),
        Fault(
            "flash-reads-past-keys",
            "flash",
            "the last tile reads keys beyond the end of K, and masks them afterwards: out is right",
            "load_tile(s_kv, k, b, kv_h, first_key, seqlen_k, head_dim)",
            "load_tile(s_kv, k, b, kv_h, first_key, first_key + BLOCK_K, head_dim)",
            finding="out-of-bounds",
            seqlen=100,
            leaves_arrays=True,
        ),
        Fault(
            "flash-barrier-in-branch",
            "flash",
            "only threads whose query exists wait for V",
            "        cuda.syncthreads()  # V is complete",
            "        if row < seqlen_q: cuda.syncthreads()  # V is complete",
            finding="divergent-barrier",
            seqlen=100,
        ),
        Fault(
            "flash-shuffle-in-branch",
            "flash",
            "only threads whose query exists take part in the reduction of the row's max",
            "m = max(m_prev, row_max_of(tile_max))",
            "m = max(m_prev, row_max_of(tile_max)) if row < seqlen_q else m_prev",
            finding="missing-lanes",
            seqlen=100,
        ),
        Fault(
            "partial-split-unwritten",
            "split_k",
            "a split in which a row sees no key stores no max and no sum",
            "        if lane == 0:\n            partial_max",
            "        if lane == 0 and m > NEG_INF:\n            partial_max",
            ("partial_max", "partial_sum"),
            "unwritten-output",
            needs={"causal": True},
        ),
        Fault(
            "partial-non-atomic",
            "split_k",
            "all splits add to the slot of the first, without atomic operations",
            "partial_O[b, h, split, row, d] = acc[i]",
            "partial_O[b, h, 0, row, d] += acc[i]",
            finding="race",
        ),
    )
}


def chosen(ids: Sequence[str], kernel: str) -> tuple[Fault, ...]:
    """The faults named `ids`, each of which must belong to `kernel`; Refusal otherwise."""
    faults = []
    for id in ids:
        if id not in CATALOGUE:
            raise Refusal(f"unknown fault {id!r}; `workbench faults` lists them: {', '.join(CATALOGUE)}")
        if CATALOGUE[id].kernel != kernel:
            own = ", ".join(fault.id for fault in CATALOGUE.values() if fault.kernel == kernel)
            raise Refusal(
                f"fault {id} belongs to kernel {CATALOGUE[id].kernel}, not to {kernel}; faults of {kernel}: {own}"
            )
        if CATALOGUE[id] in faults:
            raise Refusal(f"fault {id} is given twice; once is enough")
        faults.append(CATALOGUE[id])
    return tuple(faults)
