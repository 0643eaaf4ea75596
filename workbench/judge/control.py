"""A kernel's stages in plain float32, every operation rounded to nearest: what errors are held against where a bound is
too wide to tell.

What structured data do to rounding errors (terms that are nearly equal share one, a large sum absorbs small terms) they
do to the control's as well.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from workbench.case.box import Box
from workbench.case.case import Case
from workbench.case.contract import Contract
from workbench.case.stages import INPUTS
from workbench.expectation.compare import compared
from workbench.expectation.elements import Compared
from workbench.expectation.expectation import Expectation
from workbench.expectation.observed import Observed
from workbench.reference.losses import without
from workbench.reference.mode import PLAIN, Mode
from workbench.reference.walk import values

#: rows that are looked at, evenly spread over the queries: what a mean over rows tells grows with the root of their
#: number, and what the control costs grows with it
ROWS = 256


def has_control(run: Observed) -> bool:
    """Whether a control has the arithmetic of the contract: float32 sums of operands as they are, no polynomial for exp
    on elements that nobody knows, and no cast of probs below a maximum that nobody saw, where others are rounded.
    """
    contract = run.contract
    plain = (contract.accumulator_dtype, contract.input_precision) == ("float32", "ieee")
    chosen = contract.row_max in ("upper_bound", "any") and contract.probs_dtype != "float32"
    return plain and contract.exp_polynomial is None and (bool(run.free_maxima) or not chosen)


def sampled(case: Case, rows: int = ROWS) -> np.ndarray:
    """Indices of the queries that are looked at: so many rows over all batches and heads, or one query of each head."""
    n = min(case.seqlen_q, max(1, rows // (case.batch * case.heads)))
    return np.linspace(0, case.seqlen_q - 1, n).round().astype(int)


def at_rows(run: Observed, names: Collection[str], rows: np.ndarray) -> Iterator[tuple[str, Compared]]:
    """Comparisons with worst-case bounds of the attention stages among `names`, at the queries `rows` of each head."""
    run = run.dequantised
    e = Expectation(run, run.readable, Box(q=rows), statistics=False)
    yield from compared(e, [name for name in names if name in run.dumped])


def in_float32(e: Expectation) -> Expectation:
    """The same part in NumPy with inputs of float32, exact for those of 16 bits: all that a `control` reads, in half
    the bytes. Nothing else may be asked of it.
    """
    inputs = {name: e.part.of_input(e.run.case, name, e.run.trace.inputs[name]).astype(np.float32) for name in INPUTS}
    return replace(e, device="cpu", known={"inputs": inputs})


def control(e: Expectation, contract: Contract | None = None, mode: Mode = PLAIN) -> dict[str, np.ndarray]:
    """Every stage of a part of a trace in float32 with every operation rounded to nearest, cast where the `contract`
    says so (that of the trace, where there is none); other evaluation modes lose more.

    Each is computed from the dumped stages of the expectation where there are any, else from what was computed of q, k
    and v. A sum starts at the rescaled previous state and adds one term after the other, in the order of dims, keys or
    splits: of all orders this one absorbs the most.
    """
    e = e if contract is None else e.under(contract)
    p = e.problem
    narrow = replace(
        p,
        losses=p.losses if mode.biased else without(p.losses),
        inputs={name: x if x.dtype == bool else x.astype(np.float32, copy=False) for name, x in p.inputs.items()},
        numbers={name: np.float32(x) for name, x in p.numbers.items()},  # type: ignore[misc]
        attn_bias=None if p.attn_bias is None else p.attn_bias.astype(np.float32),
        bias_computed=None,
        given={name: x.astype(np.float32) for name, x in p.given.items()},
    )
    return {name: x for name, x in values(narrow, mode=mode).items() if p.table[name].dumped}
