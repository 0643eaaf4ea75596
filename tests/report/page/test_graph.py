"""The graph of stages: what a stage reads stands above it, nothing lies on anything else."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

from tests.report.page.judged import right
from tests.stored import stored
from workbench import Case, run
from workbench.expectation.observed import Observed
from workbench.report.page.graph import ACROSS, HEIGHT, WIDTH, flow, laid_out
from workbench.trace.trace import Trace


def attention(q, k, v, *, scale, causal):
    return {"out": v}


def traces() -> dict[str, Trace]:
    found = {"flash": run(attention, Case(seqlen=16, head_dim=8))}
    found["fp8"] = stored("fp8", Case(heads=2, seqlen=20, head_dim=64))
    return found | {"split_k": right().trace}


@pytest.fixture(scope="module")
def graphs() -> dict[str, Mapping[str, Sequence[str]]]:
    return {name: flow(Observed(trace)) for name, trace in traces().items()}


def test_a_stage_reads_what_its_step_names(graphs: dict[str, Mapping[str, Sequence[str]]]) -> None:
    found = graphs["split_k"]
    assert found["merge_weight"] == ("partial_max", "merge_max")
    assert found["acc"] == ("correction", "probs_cast", "v"), "a running state does not read itself"
    assert found["qk"] == ("q", "k") and found["scores"] == ("qk",), "a mask that is not there is not read"
    assert graphs["fp8"]["qk"] == ("dequant_q", "dequant_k")


@pytest.mark.parametrize("name", ["flash", "split_k", "fp8"])
def test_everything_stands_below_what_it_reads_and_apart(
    graphs: dict[str, Mapping[str, Sequence[str]]], name: str
) -> None:
    reads = graphs[name]
    graph = laid_out(reads)
    at = {box.name: box for box in graph.boxes}
    assert {*at} == {*reads, *(ref for refs in reads.values() for ref in refs)} and len(at) == len(graph.boxes)
    pairs = [(ref, stage) for stage, refs in reads.items() for ref in refs]
    assert [*graph.lines] == pairs
    assert all(at[stage].y - at[ref].y >= HEIGHT for ref, stage in pairs)
    for one, other in combinations(graph.boxes, 2):
        assert abs(one.x - other.x) >= WIDTH + ACROSS - 1e-6 or abs(one.y - other.y) >= HEIGHT, (one, other)
    assert all(WIDTH / 2 - 1e-6 <= box.x <= graph.width - WIDTH / 2 + 1e-6 for box in graph.boxes)
    assert all(HEIGHT / 2 <= box.y <= graph.height - HEIGHT / 2 for box in graph.boxes)


@pytest.mark.parametrize("name", ["flash", "split_k", "fp8"])
def test_no_line_passes_behind_a_box(graphs: dict[str, Mapping[str, Sequence[str]]], name: str) -> None:
    graph = laid_out(graphs[name])
    for (ref, stage), path in graph.lines.items():
        # "V": the straight parts, beside boxes of the layers that a line passes
        for part in path.split("V")[:-1]:
            x, top = map(float, part.rsplit(" ", 2)[-2:])
            for box in graph.boxes:
                beside = abs(box.y - HEIGHT / 2 - top) > 1 or abs(box.x - x) > WIDTH / 2
                assert beside or box.name in (ref, stage), (ref, stage, box)


def test_the_order_is_the_same_each_time(graphs: dict[str, Mapping[str, Sequence[str]]]) -> None:
    assert laid_out(graphs["fp8"]) == laid_out(graphs["fp8"])
