"""The catalogue of faults: named, small source changes that break a kernel.

Each tells the stage where it first shows, and what a watched run finds, which sees more than numbers show.

A fault is literally the difference that introduced the bug: `before` is found exactly once in the kernel's clean source
and replaced by `after`, which has as many lines, so that line numbers survive. Several faults may be combined as long
as they do not overlap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.refusal import Refusal


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: `needs` is a dict
class Fault:
    """One source change and what it does."""

    id: str
    kernel: str
    summary: str
    before: str
    after: str
    stages: tuple[str, ...] = ()  #: the origins it leads to; () where numbers may not show it, or not always the same
    finding: str = ""  #: the kind under which `workbench check` reports it; "" where it finds nothing
    needs: Mapping[str, Any] = field(default_factory=dict)  #: case options without which it cannot show
    seqlen: int | None = None  #: length at which it shows, taken where the user gives none
    leaves_arrays: bool = False  #: whether it reads beyond the end of its inputs
    unwritten_memory: bool = False  #: whether it shows only when unwritten memory does not happen to hold zeros
    source: str = ""  #: a public report of the same mistake


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


def applied(text: str, faults: Sequence[Fault], filename: str) -> str:
    """`text` with every fault's change; all are matched on the clean text.

    Raises Refusal where a fault's text does not occur exactly once, changes the number of lines, or overlaps another's.
    """
    places = []
    for fault in faults:
        if (count := text.count(fault.before)) != 1:
            raise Refusal(
                f"fault {fault.id}: its text must occur exactly once in {filename}; it occurs {count} times:\n"
                f"{fault.before.rstrip()}"
            )
        if fault.before.count("\n") != fault.after.count("\n"):
            raise Refusal(f"fault {fault.id}: its change must keep the number of lines, so that line numbers stay true")
        start = text.index(fault.before)
        places.append((start, start + len(fault.before), fault))
    places.sort(key=lambda place: place[0])
    for (_, end, one), (start, _, other) in zip(places, places[1:], strict=False):
        if start < end:
            raise Refusal(f"faults {one.id} and {other.id} change the same text of {filename}; choose one of them")
    for start, end, fault in reversed(places):
        text = text[:start] + fault.after + text[end:]
    return text
