"""The weights that a function returns beside out, judged: they are what attention makes of the identity as v."""

from dataclasses import replace
from typing import Any

import numpy as np

from workbench.case.presets import fields_of
from workbench.case.stages import OUT, PROBS
from workbench.explore.capturing.snapshot import Snapshot
from workbench.explore.capturing.verdict import Judged, judged, trace_of
from workbench.trace.trace import Trace

#: products of a judged call, at most: of long sequences the weights of some keys are judged, and which varies
PRODUCTS = 2**22


def weights_of(snapshot: Snapshot, name: str, said: Any, notes: tuple[str, ...] = (), gpu: str | None = None) -> Trace:
    """The weights of a snapshot on the host as the out of a trace, whose v has a one for each key in a dim of its own;
    arguments as of `verdict.trace_of`.
    """
    weights, v, taken = snapshot.results[PROBS], snapshot.inputs["v"], _keys(snapshot)
    keys, count = weights.shape[-1], len(taken)
    identity = np.broadcast_to(np.eye(keys)[:, taken], (*v.shape[:2], keys, count))
    # nobody reads what rows without keys weigh
    known = {**fields_of(snapshot.asked.contract, snapshot.case), "empty_out": "any"}
    of = replace(
        snapshot,
        asked=replace(snapshot.asked, contract=known),
        whole=snapshot.whole.but(head_dim_v=count),
        inputs={**snapshot.inputs, "v": _like(v, identity)},
        results={OUT: weights[..., taken] if isinstance(weights, np.ndarray) else weights[..., taken.tolist()]},
    )
    which = "all keys" if count == keys else f"keys {' '.join(map(str, taken))}"
    return trace_of(
        of, name, said, (*notes, f"v is the identity, so out shows the weights that the call returned for {which}"), gpu
    )


def with_weights(found: Judged, snapshot: Snapshot, name: str, said: Any, gpu: str | None) -> Judged:
    """What was found of a call, and where its weights are wrong this: they come before out."""
    if PROBS not in snapshot.results:
        return found
    of_weights = judged(weights_of(snapshot, name, said, (), gpu), snapshot.call)
    if not of_weights.leaves or (found.proved and not of_weights.proved):
        return found
    index = dict(of_weights.element["index"])
    index["k"] = int(_keys(snapshot)[index.pop("d")])
    return replace(of_weights, stage=PROBS, element={**of_weights.element, "stage": PROBS, "index": index})


def _keys(snapshot: Snapshot) -> np.ndarray:
    """The keys whose weights are judged."""
    keys = snapshot.results[PROBS].shape[-1]
    count = max(1, min(keys, PRODUCTS // snapshot.case.score_count))
    return np.sort(np.random.default_rng(snapshot.call).choice(keys, count, replace=False))


def _like(v: Any, values: np.ndarray) -> Any:
    """Values in the dtype of v, and in its library."""
    if isinstance(v, np.ndarray):
        return values.astype(v.dtype)
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(v.dtype)
