"""How far right kernels are off, in deviations of drawn budgets: what the limits of `judge.reference.samples` rest on.

`python -m campaigns.drawn_budgets [EVERY]`: one in EVERY (4) of the 1,000 right runs of `plain_references`, each under
the contract that it declares or the usual one of its dtype, on one thread; a row for each operation and dtype.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from campaigns.plain_references import runs
from workbench.floats import DTYPES, to_float64, ulp
from workbench.foreign.plain import run_plain
from workbench.foreign.target import target_of
from workbench.judge.reference.given import matched
from workbench.judge.reference.held import dumps_of
from workbench.judge.reference.samples import LIKELY, WRONG, Samples
from workbench.operations.reference.inputs import inputs_of
from workbench.operations.reference.traced import traced
from workbench.reference.graph import parse


def worst(run: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """Of each result its largest error in deviations: of 16 samples, and with those beyond LIKELY asked again."""
    inputs, kernel = (f"{runs.HERE}/{run[name]}" for name in ("inputs", "file"))
    given = inputs_of(inputs, run["dtype"], run["seed"], run["axes"])
    made = run_plain(target_of(f"{kernel}:{run['function']}").function(), given, name=run["function"])
    form = run["also"][0] if run["also"] else run["reference"]
    graph, _ = traced(f"{runs.HERE}/{form}", given)
    returned = made.returned[0]
    arrays = matched(graph, returned.arrays, returned.unwritten, run["function"])
    choices = {one.name: x for one in arrays for x in [one.x] if one.x.dtype.kind in "biu"}
    dumps = {name: x for name, x in dumps_of(graph, arrays).items() if name in choices}
    results = [one for one in arrays if one.result and one.name not in choices]
    samples = Samples(graph, parse(run["contract"], run["dtype"]), dumps, [i for one in results for i in one.nodes])
    for one in results:
        actual = to_float64(one.x)
        stored = ulp(actual, DTYPES[one.x.dtype.name]) / 2 if one.narrow else 0.0
        error = np.maximum(abs(actual - samples.value(one.nodes)) - stored, 0.0)
        first = samples.deviation(one.nodes)
        beyond = error > LIKELY * first
        again = np.where(beyond, samples.deviation(one.nodes, again=True), first) if beyond.any() else first
        yield _largest(error, first), _largest(error, again)


def _largest(error: np.ndarray, deviation: np.ndarray) -> float:
    """NaN counts as infinite."""
    with np.errstate(all="ignore"):
        found = np.where(error == 0, 0.0, error / deviation)
    return float(np.max(np.nan_to_num(found, nan=np.inf), initial=0.0))


def main() -> None:
    """Prints the table."""
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    found = defaultdict[tuple[str, str], list[tuple[float, float]]](list)
    for number, run in enumerate(runs.runs()):
        if number % every == 0:
            found[run["operation"], run["dtype"]] += [*worst(run)]
    everything = [pair for some in found.values() for pair in some]
    for name, some in [*((" ".join(key), some) for key, some in sorted(found.items())), ("all", everything)]:
        first, last = np.array(some).T
        at = ", ".join(f"{np.quantile(last, q):.1f}" for q in (0.5, 0.9, 0.99))
        print(
            f"{name:26} {len(some):4} results: median, 90 %, 99 % of the worst elements {at}, largest {last.max():.1f}"
            f" ({first.max():.1f} before they are asked again); beyond {LIKELY:g}: {np.sum(last > LIKELY)},"
            f" beyond {WRONG:g}: {np.sum(last > WRONG)}"
        )


if __name__ == "__main__":
    main()
