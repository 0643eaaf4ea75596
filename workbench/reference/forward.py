"""Every stage of a kernel from arrays alone, without a trace."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from workbench.case.contract import Contract
from workbench.case.formats import blocks_of
from workbench.case.stages import ALGORITHMS, axis_sizes, shape
from workbench.floats import to_float64
from workbench.reference.attention import table_of
from workbench.reference.losses import losses_of
from workbench.reference.problem import Arrays, Codes, Problem
from workbench.reference.walk import values
from workbench.refusal import Refusal

NOTHING: Arrays = MappingProxyType({})
#: a kernel that rounds nothing to fewer bits than float32
PLAIN = Contract(
    scores_dtype="float32",
    probs_dtype="float32",
    partials_dtype="float32",
    out_dtype="float32",
    row_sum_of_cast=False,
    block_k=None,
    splits=None,
)


def forward(
    algorithm: str,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    mask: np.ndarray,
    attn_bias: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    dropout_mask: np.ndarray | None = None,
    score_mod: Callable[[np.ndarray], np.ndarray] | None = None,
    contract: Contract = PLAIN,
    codes: Codes | None = None,
    given: Arrays = NOTHING,
    **numbers: float | None,
) -> dict[str, np.ndarray]:
    """Every stage of an algorithm in float64, name -> array with the axes of `stages.py`, in data-flow order.

    q [b, heads, q, d], k [b, kv_heads, k, d], v [b, kv_heads, k, any d]; mask (True: visible) and attn_bias, added to
    scaled scores, [q, k] or [b, heads, q, k]; sinks [heads], natural logits; dropout_mask [b, heads, q, k], which probs
    are kept; score_mod of scaled scores; `numbers` as of `Case.numbers`, scale among them. `contract`
    tells tiles and splits and the order in which they are visited, and casts, which are made where it declares them
    (`Problem.predicted_casts`); `codes` how inputs are quantised.

    A stage in `given` is read in place of the computed one by every later stage and by the next tile's state. What is
    returned is still computed, from the given or computed inputs. Refusal for a name that is no stage of the algorithm
    and for a shape that is not its own: an array of size 1 on some axis would broadcast.
    """
    known = {name: x for name, x in numbers.items() if x is not None}
    tiling = contract.tiling(k.shape[2])
    blocks = {} if codes is None else {"g": blocks_of(codes.format, codes.scale_of, q.shape[3])}
    sizes = axis_sizes(q.shape, k.shape, v.shape) | blocks | {"t": len(tiling.keys), "s": len(tiling.splits)}
    beside = {} if sinks is None else {"sinks": to_float64(sinks)[None, :, None]}
    beside |= {} if dropout_mask is None else {"dropout_mask": dropout_mask}
    made = values(
        Problem(
            table=table_of(
                algorithm,
                numbers=frozenset(known),
                row_sum_of_cast=contract.row_sum_of_cast,
                row_max=contract.row_max,
                partials=contract.partials,
                stores_lse=contract.stores_lse,
                codes=None if codes is None else codes.format,
                scale_of=None if codes is None else codes.scale_of,
                coded="qkv" if codes is None else codes.coded,
                sinks="" if sinks is None else contract.sinks,
                lse_includes_sink=contract.lse_includes_sink,
                score_mod=score_mod is not None,
            ),
            contract=contract,
            losses=losses_of(contract, known),
            inputs={"q": to_float64(q), "k": to_float64(k), "v": to_float64(v), "mask": mask, **beside},
            numbers=known,
            attn_bias=attn_bias,
            exact_products=False,
            tiling=tiling,
            given=_checked(given, algorithm, sizes),
            codes=codes,
            score_mod=score_mod,
        )
    )
    return {name: made[name] for name in ALGORITHMS[algorithm] if name in made}


def _checked(given: Arrays, algorithm: str, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    stages = ALGORITHMS[algorithm]
    for name, array in given.items():
        if name not in stages:
            raise Refusal(f"given takes stages of {algorithm}: {', '.join(stages)}; got {name!r}")
        wanted = shape(stages[name], sizes)
        if np.shape(array) != wanted:
            axes = ", ".join(f"{axis}={size}" for axis, size in zip(stages[name].axes, wanted, strict=True))
            raise Refusal(f"given {name} must have shape {wanted} ({axes}); got {np.shape(array)}")
    return {name: to_float64(array) for name, array in given.items()}
