"""Sums of rows that are kept in 16 bits, whatever their order: what rows are divided by are numbers of 16 bits."""

import numpy as np

from workbench.case.stages import RESULTS
from workbench.floats import round_to, ulp
from workbench.judge.explain.unknown.difference import Difference
from workbench.judge.explain.unknown.formula import SHARE, Formula
from workbench.judge.explain.unknown.tensors import Tensors
from workbench.reference.steps.output import LogSum, Quotient

#: the coarser first, whose numbers the other has, too
_DTYPES = ("bfloat16", "float16")
#: how far from a number a sum may be, in units of their spacing: at least, and at most, where out has few bits
NEAR, FAR = 1 / 16, 1 / 4
#: rows that tell, at least, and bits of what they tell together: of a row that is near by chance one time in 8, three
ROWS, BITS = 16, 48
#: share of them whose sum is a number of 16 bits
MOST = 0.97
#: relative error of a row's sum, at most: more is no rounding
LARGE = 0.1


@np.errstate(all="ignore")
def summed(found: Difference, around: Tensors) -> list[Formula]:
    """That the sums of rows are numbers of 16 bits, where out or lse shows that of nearly all of them, and is as this
    makes it; [] elsewhere, and of merges, whose sums are of splits.
    """
    problem = around.problem
    if found.name not in RESULTS or found.name not in problem.table or found.rows is not None or problem.merges:
        return []
    step = problem.table[found.name].step
    if not isinstance(step, Quotient | LogSum):
        return []
    of_rows = step.over if isinstance(step, Quotient) else step.total
    if of_rows in problem.given:
        return []
    wrong = found.wrong if found.wrong.any() else np.isfinite(found.actual)
    right = around.last(of_rows)
    if isinstance(step, LogSum):
        used = np.exp(found.actual - around.last(step.top))
        noise = ulp(found.actual, "float32") * used
    else:
        size = (found.expected**2).sum(-1)
        factor = (found.actual * found.expected).sum(-1) / size
        off = found.actual - factor[..., None] * found.expected
        used = right / factor
        noise = np.sqrt((off**2).sum(-1) / size / max(off.shape[-1] - 1, 1)) * abs(used)
    for dtype in _DTYPES:
        spacing, number = ulp(used, dtype), round_to(used, dtype)
        off_by = np.maximum(NEAR, 4 * noise / spacing)
        sharp = np.isfinite(used) & (off_by <= FAR) & (abs(used / right - 1) < LARGE)
        telling = sharp & (abs(right - round_to(right, dtype)) > NEAR * spacing)  # one key has the sum 1
        near = abs(used - number) <= off_by * spacing
        if telling.sum() < ROWS or -np.log2(2 * off_by[telling]).sum() < BITS or near[telling].mean() < MOST:
            continue
        by = number / right
        made = found.expected + np.log(by) if isinstance(step, LogSum) else found.expected / by[..., None]
        over = (abs(found.actual - made) / found.bound)[wrong]
        held = over <= 1
        if held.mean() >= SHARE:
            left = np.linalg.norm((found.actual - made)[wrong])
            error = np.linalg.norm((found.actual - found.expected)[wrong])
            text = f"row_sum is kept in {dtype}: rows are divided by {dtype} values"
            return [Formula(text, float(over[held].max()), int(held.sum()), held.size, float(left / error))]
    return []
