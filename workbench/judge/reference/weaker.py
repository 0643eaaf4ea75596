"""Single declarations that may make wrong stages right."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from workbench.floats import DTYPES
from workbench.judge.reference.given import Given, is_whole
from workbench.judge.stage import StageDiff
from workbench.reference.graph import Contract, Graph
from workbench.reference.graph.contract import CASTS, FAST, ROUNDS
from workbench.reference.graph.patterns import PASSES
from workbench.reference.graph.plan import upstream

#: names of the 16-bit dtypes
NARROW = tuple(name for name, dtype in DTYPES.items() if dtype.itemsize == 2)
#: stages that are tried as stored in 16 bits, at most, the last before the wrong one first
ALONE = 8
#: values of all nodes together that such trials go over, about ten seconds: fewer stages of a large graph
WORK = 1e8


def weaker(
    graph: Graph, given: Sequence[Given], contract: Contract, wrong: Sequence[StageDiff], dtype: str
) -> Iterator[tuple[str, Contract]]:
    """Single declarations that may make the wrong stages right, in words: products in fewer bits, then a stage that is
    stored in 16 bits, then those that are products of matrices, then all of them, then the results of more and more
    operations; of a loss its gradient, behind such products, too.
    """
    operands = [f"scaled-{dtype}"] if dtype in NARROW else ["tf32", "scaled-tf32"]
    for one in operands:
        yield f"operands={one}", replace(contract, operands=one)
    yield "accumulate=tensor-core", replace(contract, accumulate="tensor-core")
    names = [stage.name for stage in wrong]
    nodes = {i for one in given if one.name in names for i in one.nodes}
    above = upstream(graph, nodes)
    for name in FAST:
        if name not in contract.fast and any(graph.nodes[i].op == name for i in above):
            yield f"fast={name}", replace(contract, fast=(*contract.fast, name))
    stages = [
        name
        for name, turns in graph.stages.items()
        if above.intersection(turns) and not any(is_whole(graph.nodes[i].dtype) for i in turns)
    ]
    stages.sort(key=lambda name: -max(i for i in graph.stages[name] if i in above))
    products = [name for name in stages if all(_is_a_product(graph, i) for i in graph.latest(name))]
    casts = any(graph.nodes[i].op == "cast" for i in above)
    most = min(ALONE, int(WORK / max(sum(prod(graph.nodes[i].shape) for i in above), 1)))
    for narrow in (dtype,) if dtype in NARROW else NARROW:
        several = [*([CASTS] if casts else []), *stages[:most]]
        for some in [*([name] for name in several), *(x for x in (products, several) if len(x) > 1)]:
            yield _stored(contract, some, narrow)
    if dtype not in NARROW:
        return
    if _is_a_loss(graph):
        for some in ([], products) if products else ([],):
            words, other = _stored(contract, some, dtype)
            yield f"{words},round=gradients" if some else "round=gradients", replace(other, round=f"gradients:{dtype}")
    for which in ROUNDS[1:] if graph.saved else ROUNDS[2:]:
        yield f"round={which}", replace(contract, operands=dtype, round=f"{which}:{dtype}")


def _stored(contract: Contract, names: Sequence[str], narrow: str) -> tuple[str, Contract]:
    """The contract with stages stored in 16 bits, in words."""
    stored = {**contract.stored, **dict.fromkeys(names, narrow)}
    return f"stored={'+'.join(f'{name}:{narrow}' for name in names)}", replace(contract, stored=stored)


def _is_a_product(graph: Graph, i: int) -> bool:
    """Whether a node is a product of matrices, which torch stores in the dtype of its operands."""
    while graph.nodes[i].op in PASSES:
        i = graph.nodes[i].reads[0]
    return graph.nodes[i].op == "matmul"


def _is_a_loss(graph: Graph) -> bool:
    """Whether a gradient may be made before that of the results is known, and multiplied by it: each result has one
    number, or one for each row of what it is the loss of.
    """
    shapes = [graph.nodes[graph.inputs[name]].shape for name in graph.cotangents.values()]
    made = [graph.nodes[graph.results[name]].shape for name in graph.gradients.values()]
    return bool(made) and all(any(len(x) < len(y) and y[: len(x)] == x for y in made) for x in shapes)
