"""Laws of how a model calls attention: a prompt in one shot or in chunks, a token after the other, and from a graph.

Bits alone are asked, where the kernel claims that a row depends on nothing beside it. Within budgets each call is
judged on its own, by its case.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from workbench.explore.laws.codes import NO_CODES
from workbench.explore.laws.compare import alike, by_pairs, first
from workbench.explore.laws.law import Verdict
from workbench.explore.laws.part import Alike, own, sequences
from workbench.explore.laws.run import Rows, Run
from workbench.explore.laws.subject import Subject
from workbench.refusal import Refusal

_UNCLAIMED = "only with --invariant (the kernel claims that bits of a row depend on that row alone)"
#: calls before a graph is recorded, in which what is made once is made
_WARM = 3


def chunks_are_one_shot(s: Subject) -> Verdict:
    """A prompt in two chunks gives the same as in one; the second chunk has the keys of both.

    Preconditions: causal, and rows that do not see all keys; claimed.
    """
    if not s.claimed:
        return _UNCLAIMED
    cuts = _cuts(s)
    if isinstance(cuts, str):
        return cuts
    groups, whole = sequences(s.case), Rows.all(s.case)
    begin = s.part(q=own(s.case, [range(row) for row, _ in cuts]), k=own(s.case, [range(keys) for _, keys in cuts]))
    found = [by_pairs(_alike(s), s.first, begin, [
        (rows, rows)
        for rows in (whole._replace(b=one.b, q=range(row)) for one, (row, _) in zip(groups, cuts, strict=True))
    ])]  # fmt: skip
    if s.case.causal_alignment == "bottom-right":
        rest = s.part(q=own(s.case, [range(row, one.q) for one, (row, _) in zip(groups, cuts, strict=True)]))
        pairs = [
            (whole._replace(b=one.b, q=range(row, one.q)), whole._replace(b=one.b, q=range(one.q - row)))
            for one, (row, _) in zip(groups, cuts, strict=True)
        ]
        found.append(by_pairs(_alike(s), s.first, rest, pairs))
    return first(*found)


def decode_is_prefill(s: Subject) -> Verdict:
    """Decoding a token (one query with the keys up to its own) gives the same as the prefill.

    The second, the middle and the last token. Preconditions: causal from the bottom right, several queries, at most as
    many as keys; claimed.
    """
    case = s.case
    if not s.claimed:
        return _UNCLAIMED
    if not case.causal or case.causal_alignment != "bottom-right" or case.seqlen_q == 1:
        return "the mask is not causal from the bottom right, or there is only one query"
    if case.ragged or case.seqlen_q > case.seqlen_k or not s.read:
        return NO_CODES if not s.read else "the batch is ragged, or has more queries than keys"
    whole, found = Rows.all(case), []
    for row in dict.fromkeys((1, case.seqlen_q // 2, case.seqlen_q - 1)):
        keys = case.seqlen_k - case.seqlen_q + row + 1
        token = s.part(q=[row], k=range(keys))
        found.append(alike(s, (s.first, whole._replace(q=range(row, row + 1))), (token, whole._replace(q=range(1)))))
    return first(*found)


def graph_replay_is_eager(s: Subject) -> Verdict:
    """A call replayed from a CUDA graph gives the same as an eager call.

    Preconditions: a function in torch on a GPU, in this process; claimed.
    """
    if not s.claimed:
        return _UNCLAIMED
    if s.behind is None:
        return "only for functions that run in this process"
    rows = Rows.all(s.case)
    return alike(s, (s.first, rows), (Run(s.behind(_replayed)(s.asked, s.given)), rows))


def _cuts(s: Subject) -> list[tuple[int, int]] | str:
    """Of each of `sequences` a row of a causal run, and the number of keys that the rows before it see, about half of
    both, zeros where there are none; why that is so of all.
    """
    case = s.case
    if not case.causal:
        return "the mask is not causal"
    found = [_cut(one, case.causal_alignment == "bottom-right") for one in sequences(case)]
    if not any(keys for _, keys in found) or not s.read:
        return "no row sees only a part of the keys" if s.read else NO_CODES
    return found


def _cut(one: Alike, bottom_right: bool) -> tuple[int, int]:
    seen = np.clip(np.arange(one.q) + 1 + (one.k - one.q) * bottom_right, 0, one.k)  # by row
    rows = [row for row in range(1, one.q) if 0 < seen[row - 1] < min(one.k, seen[row])]
    row = rows[len(rows) // 2] if rows else 0
    return row, int(seen[row - 1]) if rows else 0


def _alike(s: Subject) -> Callable[..., Verdict]:
    return lambda a, b: alike(s, a, b)


def _replayed(function: Callable[..., Any], *arrays: Any, **keywords: Any) -> Any:
    """What a function returns that is recorded into a CUDA graph, after a replay of it; Refusal without a GPU."""
    if not arrays or not getattr(arrays[0], "is_cuda", False):
        raise Refusal("CUDA graphs need a function in torch on a GPU: --arrays torch,device=cuda")
    import torch

    aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_WARM):
            function(*arrays, **keywords)
    torch.cuda.current_stream().wait_stream(aside)
    with torch.cuda.graph(graph):
        made = function(*arrays, **keywords)
    graph.replay()
    torch.cuda.synchronize()
    # the memory of what was recorded is the graph's
    if isinstance(made, Mapping):
        return {name: _copied(x) for name, x in made.items()}
    return tuple(map(_copied, made)) if isinstance(made, tuple | list) else _copied(made)


def _copied(x: Any) -> Any:
    return x.clone() if hasattr(x, "clone") else x
