"""What a kernel promises about its arithmetic, as data.

Budgets read it. What a foreign kernel does not say is assumed to be the weakest choice, and shown as assumed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from workbench.case import DTYPES, Case
from workbench.refusal import Refusal


@dataclass(frozen=True)
class Contract:
    """Arithmetic of one kernel; arithmetic not named here is float32, rounded to nearest."""

    block_k: int | None  #: keys in a tile; None: unknown, so stages with a tile axis cannot be judged
    splits: (
        int | None
    )  #: splits of whole tiles, ceil(tiles / splits) each; None: the keys are not split, or it is unknown how
    scores_dtype: str  #: in which qk and scores are rounded
    probs_dtype: str  #: to which probs are cast before they meet v; float32 means no cast
    partials_dtype: str  #: in which partial_O is stored
    out_dtype: str  #: in which out is stored
    row_sum_of_cast: bool  #: whether row_sum adds the cast probs
    fast_exp: bool  #: exp of up to 2 + 1.173 |x| ulp (CUDA's __expf); otherwise at most 2 ulp
    assumed: tuple[str, ...] = ()  #: fields that nobody declared

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, for JSON."""
        return {**asdict(self), "assumed": list(self.assumed)}


def of_kernel(case: Case) -> Contract:
    """The contract of this project's own kernels for a settled case: float32 throughout, but for the cast of probs and
    for out, which is in the storage dtype.
    """
    return Contract(
        block_k=case.block_k,
        splits=case.splits,
        scores_dtype="float32",
        probs_dtype=case.probs_dtype or "float32",
        partials_dtype="float32",
        out_dtype=case.dtype,
        row_sum_of_cast=False,
        fast_exp=False,
    )


def of_foreign(declared: Mapping[str, Any], case: Case) -> Contract:
    """The contract that a foreign kernel declares, the weakest choice where it is silent.

    Raises Refusal for a field that does not exist or a value outside its rule.
    """
    known = [field.name for field in fields(Contract) if field.name != "assumed"]
    for name in declared:
        if name not in known:
            raise Refusal(f'"contract" has the fields {", ".join(known)}; got {name!r}')
    weakest = {
        "block_k": None,
        "splits": None,
        "scores_dtype": case.dtype,
        "probs_dtype": case.dtype,
        "partials_dtype": case.dtype,
        "out_dtype": case.dtype,
        "row_sum_of_cast": False,
        "fast_exp": True,
    }
    for name, value in declared.items():
        if name in ("block_k", "splits"):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise Refusal(f'"contract" field {name} must be a whole number of at least 1; got {value!r}')
        elif name.endswith("dtype"):
            if value not in DTYPES:
                raise Refusal(f'"contract" field {name} is one of {", ".join(DTYPES)}; got {value!r}')
        elif not isinstance(value, bool):
            raise Refusal(f'"contract" field {name} must be true or false; got {value!r}')
    return Contract(**(weakest | dict(declared)), assumed=tuple(name for name in weakest if name not in declared))
