"""P and dS of a backward pass that returns gradients alone, read off these by choosing dout.

With dout in row i of one query head of each group and 0 elsewhere, dS is 0 but in that row, so that of each kv head
dK_j = scale * dS_ij * q_i and dV_j = P_ij * dout_i: dS_ij = <dK_j, q_i> / (scale |q_i|^2), P_ij = <dV_j, dout_i> /
|dout_i|^2. The budgets of dK and dV become theirs by the same products.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.floats import to_float64, ulp, unit_roundoff
from workbench.operations.backward_stages import of_scaled
from workbench.operations.expected import Reference
from workbench.operations.run import OperationRun
from workbench.refusal import Refusal

#: rows that are read, the first and the last among them: each costs a call for every query head of a group
ROWS = 8


@dataclass(frozen=True, eq=False)
class Reading:
    """One stage in the rows that were read, [batch, heads, rows, keys]."""

    stage: str
    actual: np.ndarray
    expected: np.ndarray
    budget: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        """Which elements are outside; NaN are."""
        return np.logical_not(abs(self.actual - self.expected) <= self.budget)

    @property
    def lost(self) -> np.ndarray:
        """Rows [batch, heads, rows] of which nothing arrives in a sum, where something should."""
        return np.logical_and(~self.actual.any(-1), self.wrong.any(-1))

    def as_dict(self) -> dict[str, Any]:
        """Of plain Python values."""
        counts = {"outside": int(self.wrong.sum()), "size": self.wrong.size, "lost_rows": int(self.lost.sum())}
        return {"stage": self.stage, **counts}


@dataclass(frozen=True, eq=False)
class BackwardMeasured:
    """What was read of a run."""

    run: OperationRun
    rows: tuple[int, ...]
    calls: int
    weights: Reading  #: of P, or of what dropout leaves of it
    scores: Reading  #: of dS, or of what a softcap and a score_mod leave of it
    #: the first wrong stage, where what was read tells it: of P where dS and the gradients follow from the P that was
    #: read, of dS where dQ follows from the dS that was read; empty: the gradients' own sums, or it cannot be told
    origin: str

    def as_dict(self) -> dict[str, Any]:
        """The document `workbench.measure-backward/1` of `workbench measure --operation attention_backward --json`, of
        plain Python
        values.

        - `rows`, `calls`: rows read; calls of the function
        - `stages`: `stage`, `outside`, `size`, `lost_rows`
        - `origin`: the first wrong stage, if the measurement tells it
        """
        return {
            "schema": "workbench.measure-backward/1",
            "target": self.run.target,
            "rows": list(self.rows),
            "calls": self.calls,
            "stages": [one.as_dict() for one in (self.weights, self.scores)],
            "origin": self.origin or None,
        }

    @property
    def sentences(self) -> list[str]:
        """What was read, and what it tells."""
        shown = ", ".join(map(str, self.rows))
        said = [f"measured: rows {shown} of {self.weights.stage} and {self.scores.stage}, in {self.calls} calls"]
        for one in (self.weights, self.scores):
            count = int(one.wrong.sum())
            said.append(f"  {one.stage}: {count} of {one.wrong.size} over budget{_worst(one, self.rows)}")
            if lost := int(one.lost.sum()):
                said.append(f"  {one.stage}: {lost} of {one.lost.size} rows are missing from the sum over queries")
        if self.origin:
            said.append(f"  first wrong stage, as measured: {self.origin}")
        elif self.weights.wrong.any() or self.scores.wrong.any():
            said.append("  these stages or the sums over them are wrong: the measurement cannot tell which")
        return said

    def __str__(self) -> str:
        return "\n".join([self.run.headline, *self.sentences])


def _worst(one: Reading, rows: tuple[int, ...]) -> str:
    if not one.wrong.any():
        return ""
    over = np.where(one.wrong, np.nan_to_num(abs(one.actual - one.expected), nan=np.inf, posinf=np.inf), -1.0)
    b, h, n, k = np.unravel_index(int(over.argmax()), over.shape)
    actual, expected = one.actual[b, h, n, k], one.expected[b, h, n, k]
    return f", worst at [b={b}, h={h}, q={rows[n]}, k={k}]: actual {actual:.6g}, expected {expected:.6g}"


@np.errstate(all="ignore")
def measured(run: OperationRun) -> BackwardMeasured:
    """What is read of the function of a run of attention_backward, which is called again; Refusal where it cannot be,
    and where it returns no dK or dV.
    """
    case = run.case
    if case.operation.name != "attention_backward":
        raise Refusal(f"only attention_backward can be measured; got {case.operation.name}")
    if run.again is None or not {"dq", "dk", "dv"} <= {*run.stages}:
        raise Refusal(f"{run.target}: measuring needs a function to call again that returns dq, dk and dv")
    group = case.sizes["h"] // case.sizes["g"]
    rows = tuple(dict.fromkeys(int(x) for x in np.linspace(0, case.sizes["q"] - 1, ROWS).round()))
    names = "dropped" if "dropout_mask" in case.optional else "probs", of_scaled(run.setting)
    exact = Reference(run).values({}, names)
    shape = (case.sizes["b"], case.sizes["h"], len(rows), case.sizes["k"])
    read = {name: (np.full(shape, np.nan), np.full(shape, np.inf)) for name in names}
    for n, row in enumerate(rows):
        for member in range(group):
            heads = np.arange(case.sizes["g"]) * group + member
            made = run.again(case, _alone(run.inputs, heads, row))
            bounds = _bounds(made)
            factors = {"dv": to_float64(run.inputs["dout"])[:, heads, row]}
            factors["dk"] = case.numbers["scale"] * to_float64(run.inputs["q"])[:, heads, row]
            for name, gradient in zip(names, ("dv", "dk"), strict=True):
                by = factors[gradient][:, :, None] / (factors[gradient] ** 2).sum(-1)[:, :, None, None]
                read[name][0][:, heads, n] = (to_float64(made.stages[gradient]) * by).sum(-1)
                read[name][1][:, heads, n] = (bounds[gradient] * abs(by)).sum(-1)
    weights, scores = (Reading(name, read[name][0], exact[name][:, :, list(rows)], read[name][1]) for name in names)
    return BackwardMeasured(run, rows, len(rows) * group, weights, scores, _origin(run, rows, weights, scores))


def _alone(inputs: Mapping[str, np.ndarray], heads: np.ndarray, row: int) -> dict[str, np.ndarray]:
    """The inputs with a dout, and a dlse, of one row of some heads."""
    found = dict(inputs)
    for name in ("dout", "dlse"):
        if name in inputs:
            found[name] = np.zeros_like(inputs[name])
            found[name][:, heads, row] = inputs[name][:, heads, row]
    return found


def _bounds(run: OperationRun) -> dict[str, np.ndarray]:
    """The budgets of dk and dv, with what storing them rounds."""
    bounds = {}
    for name, one in Reference(run).expected({}, ("dk", "dv")).items():
        bound, dtype = one.budget.bound, run.stages[name].dtype
        bounds[name] = bound + (ulp(abs(one.value) + bound, dtype) / 2 if dtype.itemsize < 4 else 0.0)
    return bounds


def _origin(run: OperationRun, rows: tuple[int, ...], weights: Reading, scores: Reading) -> str:
    """The stage that is wrong first, where what was read tells it."""
    if weights.lost.any() or scores.lost.any():
        return ""  # what does not arrive was not read
    at, case = list(rows), run.case
    reference = Reference(run)
    right = reference.values({}, ("probs", "dq"))
    # how many times the terms of a right run those of this one are: so are their errors
    grown = max(1.0, *(_size(one.actual) / max(_size(one.expected), np.finfo(float).tiny) for one in (weights, scores)))
    if not np.isfinite(grown):
        return ""
    if weights.wrong.any():
        if weights.stage != "probs":
            return ""
        probs = right["probs"].copy()
        probs[:, :, at] = weights.actual
        follows = reference.values({"probs": probs}, (scores.stage,))[scores.stage][:, :, at]
        # the budget of P times what multiplies it
        change = abs(np.where(weights.actual == 0, 0.0, follows / weights.actual))
        allowed = grown * (scores.budget.max(-1, keepdims=True) + weights.budget * change)
        # where a right P is 0 so are its budgets: both were cast, and the gradient was stored
        allowed = allowed + 2 * unit_roundoff(case.dtype) * (abs(scores.actual) + abs(follows))
        return "probs" if scores.wrong.any() and bool((abs(scores.actual - follows) <= allowed).all()) else ""
    if not scores.wrong.any():
        return ""
    keys = np.repeat(to_float64(run.inputs["k"]), case.sizes["h"] // case.sizes["g"], 1)
    scale = case.numbers["scale"]
    dq, dumped = scale * (scores.actual @ keys), run.stages["dq"][:, :, at]
    own = reference.expected({}, ("dq",))["dq"].budget.bound[:, :, at]
    allowed = grown * (own + abs(scale) * (scores.budget @ abs(keys))) + ulp(abs(dq), dumped.dtype)
    follows, wrong = abs(to_float64(dumped) - dq) <= allowed, abs(to_float64(dumped) - right["dq"][:, :, at]) > allowed
    return scores.stage if bool(follows.all()) and bool(wrong.any()) else ""


def _size(x: np.ndarray) -> float:
    return float(np.max(abs(x), initial=0.0))
