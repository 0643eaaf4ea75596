"""Watched runs of the kernels: nothing is found in them, and every fault and every missing barrier is."""

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench import Case, Refusal
from workbench.case.distributions import DISTRIBUTIONS, FIXED
from workbench.cuda import emulator
from workbench.cuda.build import Switches
from workbench.cuda.check import Schedule, check
from workbench.cuda.effect import effective
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import resolve

SMALL = {"head_dim": 32, "block_q": 16, "block_k": 16}
#: the others are watched in tests of their own: a build of one takes 10 s
OURS = ("flash", "flash_mma", "split_k", "fp8")


def case_of(kernel: str, **options) -> Case:  # noqa: ANN003
    splits = {"splits": 3} if KERNELS[kernel].splits else {}
    return Case(**SMALL | splits | {"dtype": KERNELS[kernel].dtypes[0]} | options)


# ---- kernels are clean


@pytest.mark.campaign(but=2)
@pytest.mark.parametrize(
    ("kernel", "causal"),
    [
        *((kernel, causal) for kernel in OURS for causal in (False, True) if kernel != "flash_mma"),
        # a build of 14 s, and without the mask another, of a part of the same source
        pytest.param("flash_mma", True, marks=pytest.mark.campaign),
    ],
)
def test_nothing_is_found_in_a_correct_kernel(kernel: str, causal: bool) -> None:
    for seqlen in (1, 33, 64, 100):
        found = check(kernel, case_of(kernel, seqlen=seqlen, causal=causal, heads=4, kv_heads=2))
        assert found.findings == ()
        assert found.blocks >= 4 * -(-seqlen // 32)


@pytest.mark.campaign
@pytest.mark.parametrize("kernel", OURS)
def test_nothing_is_found_in_random_cases(kernel: str) -> None:
    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        kv_heads = data.draw(st.integers(1, 2))
        options = {
            "batch": data.draw(st.integers(1, 2)),
            "heads": kv_heads * data.draw(st.integers(1, 3)),
            "kv_heads": kv_heads,
            "seqlen_q": data.draw(st.integers(1, 70)),
            "seqlen_k": data.draw(st.integers(1, 100)),
            "head_dim": KERNELS[kernel].dims * data.draw(st.integers(1, 32 // KERNELS[kernel].dims)),
            "causal": kernel == "flash_mma" or data.draw(st.booleans()),  # of which it is another build
            "causal_alignment": data.draw(st.sampled_from(["bottom-right", "top-left"])),
            "seed": data.draw(st.integers(0, 2**32)),
            "distribution": data.draw(st.sampled_from(sorted({*DISTRIBUTIONS} - {*FIXED}))),
        }
        if KERNELS[kernel].splits:
            options["splits"] = data.draw(st.integers(1, 5))
        assert check(kernel, case_of(kernel, **options)).findings == ()

    holds()


@pytest.mark.campaign
def test_nothing_is_found_with_narrow_storage() -> None:
    """Of another kind in the kernel on tensor cores, in float16."""
    assert check("flash", case_of("flash", seqlen=65, dtype="bfloat16", causal=True), probes="output").findings == ()


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("kernel", OURS)
def test_schedules_differ_and_give_the_same_bits(kernel: str) -> None:
    found = check(kernel, case_of(kernel, seqlen=100, causal=True, heads=2), schedules=6)
    assert found.findings == ()
    assert found.schedules == (
        Schedule("ascending", 0, False),
        Schedule("ascending", 0, True),
        Schedule("descending", 0, False),
        Schedule("descending", 0, True),
        Schedule("shuffle", 1, False),
        Schedule("shuffle", 1, True),
    )


def test_refusals() -> None:
    with pytest.raises(Refusal, match=r"^schedules must be a whole number of at least 1; got 0$"):
        check("flash", Case(), schedules=0)
    with pytest.raises(Refusal, match="takes no splits"):
        check("flash", Case(splits=2))


# ---- faults are found, at their line


#: fault -> the line in the faulty source, or in device.py, that the finding names
LINES = {
    "partial-acc-uninitialised": "acc[i] = acc[i] * correction",
    "reduce-acc-uninitialised": "acc[i] += weight * partial_O[b, h, s, row, d]",
    "flash-no-barrier-before-load": "tile[r, d] = LOAD(x[b, h, row, first_dim + d])",
    "flash-no-barrier-after-load": "dot += s_q[r, d] * s_kv[c, d]",
    "flash-tile-partly-written": "dot += s_q[r, d] * s_kv[c, d]",
    "flash-reads-past-keys": "tile[r, d] = LOAD(x[b, h, row, first_dim + d])",
    "flash-cu-seqlens-off-by-one": "tile[r, d] = LOAD(x[b, h, row, first_dim + d])",
    "flash-barrier-in-branch": "if row < seqlen_q: cuda.syncthreads()  # V is complete before any thread reads it",
    "flash-shuffle-in-branch": "x = max(x, cuda.shfl_xor_sync(FULL_WARP, x, offset))",
    "partial-split-unwritten": "partial_max[b, h, split, row] = m",
    "partial-non-atomic": "partial_O[b, h, 0, row, d] += acc[i]",
    "scores-loaded-by-one-lane": "for c in range(keys): tile_max = max(tile_max, row_scores[c])",
}
ARRAYS = {
    "partial-acc-uninitialised": "acc",
    "reduce-acc-uninitialised": "acc",
    "flash-no-barrier-before-load": "s_kv",
    "flash-no-barrier-after-load": "s_kv",
    "flash-tile-partly-written": "s_q",
    "flash-reads-past-keys": "k",
    "flash-cu-seqlens-off-by-one": "k",
    "partial-split-unwritten": "partial_max",
    "partial-non-atomic": "partial_O",
    "scores-loaded-by-one-lane": "row_scores",
}


def test_every_fault_that_a_watched_run_finds_is_tested() -> None:
    """Those of kernels on tensor cores in faults/test_mma.py and beside it."""
    others = (fault for fault in CATALOGUE.values() if "mma" not in fault.kernel and fault.kernel != "flash_tensor")
    assert set(LINES) == {fault.id for fault in others if fault.finding}


#: faults that one build and one run show: none of them ends a launch, and no two are of one text
TOGETHER = (
    (
        "flash-no-barrier-before-load",
        "flash-no-barrier-after-load",
        "flash-tile-partly-written",
        "flash-reads-past-keys",
    ),
    ("partial-acc-uninitialised", "reduce-acc-uninitialised", "partial-split-unwritten", "partial-non-atomic"),
)
ALONE = tuple((id,) for id in LINES if not any(id in ids for ids in TOGETHER))


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    "ids",
    [*TOGETHER, *(pytest.param(ids, marks=pytest.mark.campaign) for ids in ALONE)],
    ids=lambda ids: ids[0],
)
def test_a_fault_is_reported_with_its_kind_and_line(ids: Sequence[str]) -> None:
    faults = [CATALOGUE[id] for id in ids]
    needs = {name: value for fault in faults for name, value in fault.needs.items()} | {"causal": True}
    if "seqlens_q" not in needs:
        needs |= {"seqlen": min(fault.seqlen or 128 for fault in faults)}
    case = case_of(faults[0].kernel, **needs, heads=2)
    found = check(faults[0].kernel, case, faults=ids, probes="output")
    reported = {
        (finding.kind, finding.array, found.line(*place))
        for finding in found.findings
        # a race has two lines, in the order in which threads came to them
        for place in ((finding.file, finding.line), (finding.other_file, finding.other_line))
        if place[1]
    }
    assert {(fault.finding, ARRAYS.get(fault.id, ""), LINES[fault.id]) for fault in faults} <= reported


# ---- barrier mutation


BARRIER = re.compile(r"cuda\.(syncthreads|syncwarp)\(\)")


#: barriers that no run needs, by kernel and text of the line, with the reason
REDUNDANT: dict[tuple[str, str], str] = {
    ("flash_mma", "cuda.syncwarp()"): "no barrier: compilers turn a branch without it into selects in every tile",
}


def barriers() -> list[tuple[str, str, int]]:
    """Kernel, source and line, from 1, of every barrier of every source; the first kernel of those that share one. Those
    of kernels for Hopper, which tiles of 32 rows are too small for, are faults of the catalogue, as are those of codes.
    """
    made = [kernel for kernel in KERNELS.values() if kernel.least_block == 1]
    first = {file: kernel.name for kernel in made[::-1] for file in kernel.functions.values()}
    return [
        (kernel, file.name, number)
        for file, kernel in first.items()
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if BARRIER.search(line) and (kernel, line.partition("#")[0].strip()) not in REDUNDANT
        if number in on_floats(file)
    ]


@cache
def on_floats(file: Path) -> set[int]:
    """The lines of a source that are not behind CODES."""
    tree = Switches({"CODES": False}).visit(ast.parse(file.read_text()))
    return {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)}


def left_out(kernel: str, file: str) -> dict[str, Fault]:
    """Each barrier of a source left out where there are as many queries as the number of its line: one build for all."""
    lines = KERNELS[kernel].file.with_name(file).read_text().splitlines(keepends=True)
    found = {}
    for number in [line for _, of, line in barriers() if of == file]:
        before = lines[number - 1]
        unique = before if lines.count(before) == 1 else before + lines[number]
        after = BARRIER.sub(rf"if seqlen_q != {number}: \g<0>", unique, count=1)
        found[f"left-out-{number}"] = Fault(
            f"left-out-{number}", kernel, "a barrier left out", unique, after, file=file
        )
    return found


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(
    ("kernel", "file", "line"),
    # a build of each kernel and of rows in chunks
    [pytest.param(*one, marks=() if one[1] == "flash.py" else pytest.mark.campaign) for one in barriers()],
)
def test_no_barrier_can_be_left_out_unseen(kernel: str, file: str, line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = left_out(kernel, file)
    monkeypatch.setattr("workbench.cuda.faults.catalogue.CATALOGUE", {**CATALOGUE, **faults})

    text = KERNELS[kernel].file.with_name(file).read_text().splitlines()[line - 1]
    chunks = {"head_dim": 129} if file == "flash.py" and text.startswith(" " * 16) else {}

    def kinds(queries: int) -> set[str]:
        case = case_of(kernel, seqlen_q=queries, seqlen_k=128, **chunks)  # rows in chunks have barriers of their own
        built = [name for name, fault in faults.items() if effective(fault, resolve(KERNELS[kernel], case))]
        return {finding.kind for finding in check(kernel, case, faults=built, probes="output").findings}

    assert kinds(line) & {"race", "uninitialised-read"}
    assert kinds(line + 1) == set(), "with every barrier in its place"


def test_there_are_barriers_to_leave_out() -> None:
    assert len(barriers()) >= 8


# ---- what a finding says


def test_a_finding_names_files_that_exist_and_lines_in_them() -> None:
    case = case_of("flash", seqlen=100, heads=2, causal=True)
    found = check("flash", case, faults=TOGETHER[0], probes="output")  # a build that is there
    race = next(one for one in found.findings if (one.kind, one.array) == ("race", "s_kv") and one.other_line)
    assert Path(race.file) == KERNELS["flash"].file == Path(race.other_file or "")
    assert (
        race.text
        == f"s_kv[{race.index[0]}, {race.index[1]}] is accessed by two threads, at least one writing, with no barrier in between"
    )
    assert len(race.threads) == 2 and race.threads[0] != race.threads[1] and race.count > 1
    merged = emulator.merged([race, replace(race, count=5)])
    assert merged == [replace(race, count=race.count + 5)]


@pytest.mark.campaign
def test_what_is_found_in_jupyter_is_shown_and_not_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = check("flash", case_of("flash", seqlen=100), faults=["flash-reads-past-keys"], probes="output")
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)  # where rich shows whatever it prints
    page = re.sub("<[^>]*>", "", found._repr_html_())
    assert capsys.readouterr().out == ""
    assert page.startswith("workbench check flash --fault flash-reads-past-keys --seqlen 100")
    assert "out-of-bounds: k[0, 0, 100, 0] is out of bounds" in page and "LOAD(x[b, h, row, first_dim + d])" in page
    assert found.as_dict()["findings"][0]["kind"] == "out-of-bounds"
