"""What hypotheses read of a run beside q, k and v: where its queries stand, what is added, how its memory lies."""

import numpy as np

from workbench.case.box import WHOLE
from workbench.case.case import Case
from workbench.case.inputs import by_name
from workbench.case.masks import spread
from workbench.case.memory import cu_seqlens, packed, padded, paged, poison_of
from workbench.case.stages import MASKS
from workbench.floats import to_float64
from workbench.trace.trace import Trace

#: inputs that are put in beside q, k and v -> what they are called here
_PUT_IN = {"bias": "bias_put_in", "mask": "mask_put_in"}
#: share of the keys that a mask which nobody gave shows
_SEEN = 0.8


def surroundings(trace: Trace) -> dict[str, np.ndarray]:
    """Arrays by name, those alone that the case has; none of a case without the fields that they are of.

    positions: `queries`, their indices, int64 [q]; `lengths_q` and `lengths_k`, int64 [b]; `diagonals`, int64
    [b, 1, 1, 1]; `largest`, int64 [2], lengths of keys and of queries. masks: `window`, int64 [2], left and right;
    `mask_put_in`, bool [b, h, q, k]. added: `slopes`, [1, h, 1, 1]; `of_column`, a bool; `bias_put_in`, [b, h, q, k].
    memory, of whole runs: `starts_q` and `starts_k`, int32 [b], `packed_q`, `packed_k` and `packed_v`, [rows, h, d];
    `poisoned_k` and `poisoned_v`, [b, kv_h, k, d], with what stands behind the ends; `pages_k` and `pages_v`,
    [page, key, kv_h, d], the other way round where `heads_first`, a bool; `block_table`, int32 [b, pages].
    """
    case, found = trace.case, dict[str, np.ndarray]()
    for name, own in _PUT_IN.items():
        if name in trace.inputs:
            x = spread(case, trace.inputs[name])
            found[own] = x if x.dtype == bool else to_float64(x)
    if not found and not case.ragged and case.slopes is None and case.page_size is None:
        return found
    whole, part = trace.case_run, WHOLE.within(trace.box)
    found["queries"] = np.arange(whole.seqlen_q)[part.q]
    found["lengths_q"], found["lengths_k"] = whole.lengths_q[part.b], whole.lengths_k[part.b]
    found["diagonals"] = whole.diagonals[part.b][:, None, None, None]
    found["largest"] = np.array([whole.seqlen_k, whole.seqlen_q])
    found["window"] = np.array(whole.sides)
    if case.slopes is not None:
        found["slopes"] = case.slopes.astype(np.float64)[None, :, None, None]
        found["of_column"] = np.array(case.alibi_form == "column")
    return found if trace.box is not None else {**found, **_memory(trace)}


def _memory(trace: Trace) -> dict[str, np.ndarray]:
    """How k and v lie in memory at a call."""
    case, k, v = trace.case, trace.inputs["k"], trace.inputs["v"]
    found: dict[str, np.ndarray] = {}
    if case.ragged:
        found["packed_q"] = to_float64(packed(trace.inputs["q"], case.lengths_q))
        for name, x in (("k", k), ("v", v)):
            found[f"packed_{name}"] = to_float64(packed(x, case.lengths_k))
            found[f"poisoned_{name}"] = to_float64(padded(x, case.lengths_k, poison_of(case), case.seed))
        found["starts_q"], found["starts_k"] = cu_seqlens(case.lengths_q)[:-1], cu_seqlens(case.lengths_k)[:-1]
    if case.page_size is not None:
        pages = paged(case, k, v, poison_of(case))
        found |= {"pages_k": to_float64(pages.k), "pages_v": to_float64(pages.v), "block_table": pages.block_table}
        found["heads_first"] = np.array(case.kv_layout == "HND")
    return found


def drawn(trace: Trace, case: Case) -> dict[str, np.ndarray]:
    """The inputs of another case of the same kernel; a bias and a mask are drawn where it was given one, and its own
    where it takes no other.
    """
    found, rng = by_name(case), np.random.default_rng((case.seed, 5))
    if trace.one_case:
        return {**found, **{name: trace.inputs[name] for name in MASKS if name in trace.inputs}}
    shape = (case.batch, case.heads, case.seqlen_q, case.seqlen_k)
    if "bias" in trace.inputs:
        found["bias"] = rng.standard_normal(shape, np.float32)
    if "mask" in trace.inputs and case.mask_mod is None:
        found["mask"] = rng.random(shape, np.float32) < _SEEN
    return found
