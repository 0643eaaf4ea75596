"""Facts about stages are asked of their records: names of stages in the code are counted, and the count only falls."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from workbench.case.stages import STAGES

ROOT = Path(__file__).parent.parent / "workbench"
#: where names of stages are the subject, or words of something else: other operations, kernels and faults, hypotheses, laws, readings, adapters
OF_STAGES = (
    "operations",
    "reference/graph",
    "cuda",
    "judge/explain/library",
    "explore/laws",
    "readings",
    "foreign/adapters.py",
)
#: attention as an operation: the records of its stages, its table, and its backward pass in plain code
DEFINITION = ("case/stages.py", "reference/attention.py", "reference/attention_backward.py")
#: literals elsewhere, many of them fields and values of a contract that have the name of a stage
MOST = 57


@cache
def sources() -> dict[str, ast.Module]:
    """The parsed sources of the package by their paths."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def literals(tree: ast.AST) -> int:
    """String constants that are the name of a stage."""
    return sum(isinstance(x, ast.Constant) and isinstance(x.value, str) and x.value in STAGES for x in ast.walk(tree))


def takes_trace(tree: ast.AST) -> Iterator[str]:
    """Functions with an argument that is a trace, by its name or its annotation."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if any(x.arg == "trace" or (x.annotation and ast.unparse(x.annotation) == "Trace") for x in every):
                yield node.name


def test_they_are_counted() -> None:
    assert literals(ast.parse("x = {'out': 1, 'oops': 2}\nf(name in ('lse', 'row_max'))\n\"\"\"out\"\"\"")) == 4
    assert literals(ast.parse("run.known[name].result")) == 0


def test_fewer_names_of_stages_than_before() -> None:
    others = {name: tree for name, tree in sources().items() if not name.startswith((*OF_STAGES, *DEFINITION))}
    found = {name: n for name, tree in others.items() if (n := literals(tree))}
    assert len(found) > 20, "nothing was scanned"
    assert sum(found.values()) <= MOST, dict(sorted(found.items(), key=lambda item: -item[1]))


def test_functions_that_take_a_trace_are_seen() -> None:
    source = "def f(run, *, trace): ...\ndef g(x: Trace): ...\ndef h(run: Observed) -> Trace: ..."
    assert list(takes_trace(ast.parse(source))) == ["f", "g"]


def test_judging_takes_what_was_observed_and_no_trace() -> None:
    """But for its way in, for runs of a kernel again, for calls that are joined before, and for what lies around inputs,
    which asks for nothing else.
    """
    judging = {x: tree for x, tree in sources().items() if x.startswith("judge/")}
    assert len(judging) > 100
    assert {name: found for name, tree in judging.items() if (found := [*takes_trace(tree)])} == {
        "judge/diff.py": ["diff"],
        "judge/against/passes.py": ["named", "of_scores"],
        "judge/explain/trial.py": ["runner"],
        "judge/explain/surroundings.py": ["surroundings", "_memory", "drawn"],
        "judge/explain/unstable.py": ["_again", "_draws", "_same"],
    }
