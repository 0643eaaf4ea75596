"""A part of a call of packed sequences, whose lengths are on the device: some rows of one sequence, gathered there, and
cut to its lengths once they are on the host.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.case.box import Box
from workbench.case.case import Case
from workbench.case.stages import INPUTS
from workbench.explore.capturing.snapshot import SCORES, Snapshot, case_of_call, copied
from workbench.foreign.calls import Call
from workbench.foreign.read_back import Packed
from workbench.refusal import Refusal


@dataclass(frozen=True)
class PackedSnapshot:
    """As `Snapshot`, of one of packed sequences; as many rows and keys as the longest has."""

    call: int
    asked: Call
    whole: Case  #: of a sequence as long as the longest
    heads: slice
    sequence: int
    count: int  #: of its queries, at most
    late: float  #: of the queries that are left over, the share before the first
    bounds: Any  #: first row and behind the last, of its queries and of its keys, int [4] on the device
    inputs: Mapping[str, Any]
    results: Mapping[str, Any]
    changed: Any = None
    ready: Any = None

    @property
    def tensors(self) -> tuple[Any, ...]:
        """All copies."""
        return (*self.inputs.values(), *self.results.values(), self.bounds, self.changed)

    @property
    def has_all_rows(self) -> bool:
        """Whether it has all queries of its heads."""
        return self.count == self.whole.seqlen_q

    def rows_of(self, x: Any) -> Any:
        """A copy of the part of what has its queries, [1, h, rows(, d)]."""
        import torch

        first, last = self.bounds[0], self.bounds[1]
        at = first + _places(torch.arange(self.count, device=x.device), last - first, self.count, self.late)
        return x[:, self.heads].index_select(2, at.clamp(0, x.shape[2] - 1))

    def keys_of(self, x: Any) -> Any:
        """A copy of the part of what has its keys, [1, kv head, rows, d]."""
        import torch

        group, keys = self.whole.heads // self.whole.kv_heads, self.whole.seqlen_k
        heads = slice(self.heads.start // group, self.heads.start // group + 1)
        table = None if self.asked.packed is None else self.asked.packed.block_table
        if table is not None:  # what stands behind the last page of a sequence may be anything
            pages = table[self.sequence, : -(-keys // x.shape[2])].long().clamp(0, x.shape[0] - 1)
            return x[:, heads].index_select(0, pages).transpose(0, 1).flatten(1, 2)[None, :, :keys]
        at = self.bounds[2] + torch.arange(keys, device=x.device)
        return x[:, heads].index_select(2, at.clamp(0, x.shape[2] - 1))

    def now(self) -> dict[str, Any]:
        """The same part of the call's own tensors, as they are now."""
        return {x: (self.rows_of if x == "q" else self.keys_of)(self.asked.inputs[x]) for x in INPUTS}

    def on_host(self) -> Snapshot:
        """The sequence, cut to its lengths, on the CPU. Refusal for one without queries or keys."""
        rows, places, keys = self.cut()
        whole = self.whole.but(seqlen_q=rows, seqlen_k=keys)
        inputs = {x: y.cpu()[:, :, : len(places) if x == "q" else keys] for x, y in self.inputs.items()}
        results = {x: y.cpu()[:, :, : len(places)] for x, y in self.results.items()}
        part = Box(slice(0, 1), self.heads, places)
        changed = None if self.changed is None else self.changed.cpu()
        return Snapshot(self.call, self.asked, whole, part, inputs, results, changed, self.ready, self.sequence)

    def cut(self) -> tuple[int, np.ndarray, int]:
        """How many queries the sequence has, the places of those that were copied, and how many keys."""
        first, last, first_key, last_key = (int(x) for x in self.bounds.cpu())
        rows, keys = last - first, last_key - first_key
        if not (0 < rows <= self.whole.seqlen_q and 0 < keys <= self.whole.seqlen_k):
            raise Refusal(f"a sequence has {rows} queries and {keys} keys; allowed are 1 up to the declared maxima "
                          f"{self.whole.seqlen_q} and {self.whole.seqlen_k}")  # fmt: skip
        places = _places(np.arange(self.count), rows, self.count, self.late)
        return rows, places[places < rows], keys


def taken_packed(asked: Call, call: int, limit: int, random: np.random.Generator) -> PackedSnapshot:
    """The part of a call of packed sequences that is to be judged, as of `snapshot.taken`."""
    import torch

    packed = asked.packed
    assert packed is not None
    if "mask" in asked.inputs or "bias" in asked.inputs:
        raise Refusal("packed sequences with a mask or a bias")
    whole = case_of_call(asked, (int(packed.max_seqlen_q), int(packed.max_seqlen_k)))
    sequences, group = len(packed.cu_seqlens_q) - 1, whole.heads // whole.kv_heads
    of_keys = len(packed.seqused_k if packed.seqused_k is not None else packed.cu_seqlens_k[1:])
    if sequences < 1 or of_keys != sequences:
        raise Refusal(f"queries of {sequences} sequences but keys of {of_keys}")
    if packed.in_pages and len(packed.block_table) != sequences:
        raise Refusal(f"queries of {sequences} sequences but pages of {len(packed.block_table)}")
    sequence, head = int(random.integers(sequences)), int(random.integers(whole.kv_heads)) * group
    count = min(whole.seqlen_q, max(1, SCORES // (whole.seqlen_k * group)))
    ends = slice(sequence, sequence + 2)
    bounds = torch.cat([packed.cu_seqlens_q[ends].long(), _ends_of_keys(packed, sequence)])
    heads, late = slice(head, head + group), float(random.random())
    before = PackedSnapshot(call, asked, whole, heads, sequence, count, late, bounds, {}, {})
    made: PackedSnapshot = copied(before, before.now(), limit)
    return made


def _ends_of_keys(packed: Packed, sequence: int) -> Any:
    """The first key of a sequence and behind its last, int64 [2], on the device; of one in pages the first is 0."""
    import torch

    if packed.seqused_k is not None:
        used = packed.seqused_k[sequence : sequence + 1].long()
        start = torch.zeros_like(used) if packed.in_pages else packed.cu_seqlens_k[sequence].long()[None]
        return torch.cat([start, start + used])
    ends = packed.cu_seqlens_k[sequence : sequence + 2].long()
    return ends - ends[0] if packed.in_pages else ends


def stripped(of: Snapshot | PackedSnapshot) -> Snapshot | PackedSnapshot:
    """A snapshot that holds nothing of its call but copies."""
    return replace(of, asked=replace(of.asked, inputs={}, packed=None), results={})


def _places(index: Any, rows: Any, count: int, late: float) -> Any:
    """`count` places at even distances among `rows`, in integers of NumPy or of torch alike; beyond them where there
    are fewer.
    """
    step = (rows // count) + (rows < count)
    left = rows - 1 - (count - 1) * step
    first = (left * int(late * 1024)) // 1024 * (left > 0)
    return first + index * step
