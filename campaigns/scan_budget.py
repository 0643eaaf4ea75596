"""How wide budgets of the gated delta rule are: of `out` alone, over the error of right float32 runs.

`python -m campaigns.scan_budget`: for each number of tokens, and a run by token that says so, one by chunks of 64
that says so, and one by token that says nothing, the median of the budgets and of the statistical ones over the
median error, and the largest error in budgets. A budget is a worst case, or 16 deviations of drawn roundings. Beside
it, what the three roundings of each token's state may add up to, of u |x| each: a worst case that knows no more of a
rounding is not below that.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from workbench.floats import to_float64, unit_roundoff
from workbench.operations.case import OperationCase
from workbench.operations.every import OPERATIONS
from workbench.operations.judge import judged
from workbench.operations.run import OperationRun, run_operation

TOKENS = (64, 512, 2048)
CHUNK = 64
OPERATION = OPERATIONS["gated_delta_rule"]


def by_token(q: Any, k: Any, v: Any, gate: Any, beta: Any, initial_state: Any, *, scale: float) -> Any:
    """A right run in float32, one token after the other."""
    state, found = initial_state, []
    for t in range(q.shape[2]):
        key, decayed = k[:, :, t], gate[:, :, t, None, None] * state
        written = beta[:, :, t, None] * (v[:, :, t] - np.einsum("bhd,bhde->bhe", key, decayed))
        state = decayed + key[..., None] * written[..., None, :]
        found.append(np.float32(scale) * np.einsum("bhd,bhde->bhe", q[:, :, t], state))
    return np.stack(found, axis=2)


def by_chunk(q: Any, k: Any, v: Any, gate: Any, beta: Any, initial_state: Any, *, scale: float) -> Any:
    """The same in chunks, as GPUs compute it."""
    state, found = initial_state, []
    for first in range(0, q.shape[2], CHUNK):
        at = slice(first, first + CHUNK)
        query, key, value, step = q[:, :, at], k[:, :, at], v[:, :, at], beta[:, :, at, None]
        g = np.cumsum(np.log(gate[:, :, at]), axis=-1, dtype=np.float32)
        decay = np.exp(np.tril(g[..., :, None] - g[..., None, :]))
        inverse = _inverse(np.tril(decay * (key @ key.swapaxes(-1, -2)) * step, -1))
        kept = np.exp(g)[..., None]
        written = inverse @ (step * value) - inverse @ (step * kept * key) @ state
        scores = np.tril(decay * (query @ key.swapaxes(-1, -2)))
        found.append(np.float32(scale) * (kept * (query @ state) + scores @ written))
        state = kept[..., -1:, :] * state + (np.exp(g[..., -1:] - g)[..., None] * key).swapaxes(-1, -2) @ written
    return np.concatenate(found, axis=2)


def _inverse(lower: Any) -> Any:
    """(I + lower)^-1 by forward substitution."""
    made = np.zeros_like(lower) + np.eye(lower.shape[-1], dtype=lower.dtype)
    for i in range(1, lower.shape[-1]):
        made[..., i, :i] = -(lower[..., i, None, :i] @ made[..., :i, :i])[..., 0, :]
    return made


def of_states(run: OperationRun) -> np.ndarray:
    """What roundings of gate * state, of k written^T and of their sum may add up to in each element of out."""
    q, k, v, gate, beta, state = (to_float64(x)[0, 0] for x in run.inputs.values())
    tokens, u = len(q), unit_roundoff("float32")
    rounded = np.zeros((tokens, *state.shape))
    for t in range(tokens):
        kept = gate[t] * state
        more = np.outer(k[t], beta[t] * (v[t] - k[t] @ kept))
        state = kept + more
        rounded[t] = u * (abs(kept) + abs(more) + abs(state))
    found, rows = np.zeros_like(v), np.zeros_like(q)
    for t in reversed(range(tokens)):
        rows[t] = run.case.numbers["scale"] * q[t]
        found[t:] += abs(rows[t:]) @ rounded[t]
        rows[t:] = gate[t] * (rows[t:] - beta[t] * np.outer(rows[t:] @ k[t], k[t]))
    return found


#: name -> a right function, and what it says of itself
KERNELS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "by token": (by_token, {"chunk": 1}),
    "by chunk": (by_chunk, {"chunk": CHUNK}),
    "by token, unsaid": (by_token, {}),
}


def _saying(function: Callable[..., Any], said: Mapping[str, Any]) -> Callable[..., Any]:
    return lambda *inputs, scale: {"out": function(*inputs, scale=scale), "contract": dict(said)}


def measure() -> Iterator[dict[str, Any]]:
    """A row for each number of tokens and kernel."""
    for tokens in TOKENS:
        case = OperationCase(OPERATION, {"heads": 1, "tokens": tokens})
        for name, (function, said) in KERNELS.items():
            run = run_operation(_saying(function, said), case, name=name)
            judgement = judged(run)
            found = judgement["out"].isolated
            assert found is not None
            error = abs(found.error)
            usual = float(np.median(error[error > 0]))
            yield {
                "tokens": tokens,
                "kernel": name,
                "by": "drawn" if "out" in judgement.drawn else "worst-case",
                "worst": float(np.median(found.budget)) / usual,
                "statistical": float(np.median(found.budget * found.elements.statistical)) / usual,
                "largest": float(np.max(error / found.budget)),
                "of_states": float(np.median(of_states(run))) / usual,
            }


def main() -> None:
    """Prints the table."""
    for row in measure():
        print(
            f"{row['tokens']:5} tokens, {row['kernel']}: {row['by']} budget {row['worst']:.0f} times the error,"
            f" statistical {row['statistical']:.0f} times (medians); largest error {row['largest']:.3f} of its budget;"
            f" roundings of states alone {row['of_states']:.0f} times"
        )


if __name__ == "__main__":
    main()
