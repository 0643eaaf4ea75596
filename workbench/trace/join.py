"""One trace of several files, each of which holds a part of the same run: a head each, or a tile of queries."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from workbench.case.box import AXES, Box
from workbench.case.case import Case
from workbench.case.masks import spread, visible
from workbench.case.options import Options
from workbench.case.stages import ALGORITHMS, INPUT_AXES
from workbench.refusal import Refusal
from workbench.trace import ranks
from workbench.trace.file import load
from workbench.trace.kept import nothing_kept
from workbench.trace.manifest import text_of
from workbench.trace.trace import Trace, check

SUFFIX = ".safetensors"
#: what must be the same in every file
_SHARED = ("target", "algorithm", "contract", "backend", "faults", "requested", "put_in", "provenance")


def is_trace(target: str) -> bool:
    """Whether TARGET names a trace: a file, whatever its suffix, several separated by commas, a pattern of them, or a
    folder.
    """
    return target.endswith(SUFFIX) or Path(target).is_dir() or text_of(Path(target)) is not None


def files_of(target: str) -> list[Path]:
    """The files of a trace that TARGET names, those of a folder or a pattern sorted; Refusal where there are none."""
    if Path(target).is_file():
        return [Path(target)]
    found = [file for word in target.split(",") for file in _files(Path(word))]
    if not found:
        raise Refusal(f"{target}: {nothing_kept(Path(target)) or _no_trace(Path(target))}")
    return found


def calls_of(target: str) -> list[Path]:
    """The files of a folder that holds calls of a capture, each a run of its own; [] for another TARGET."""
    found = sorted(Path(target).glob(f"*{SUFFIX}")) if Path(target).is_dir() else []
    numbered = len(found) > 1 and all(re.fullmatch(r"\d{6}", file.stem) for file in found)
    return found if numbered and load(found[0]).box is None else []


def _no_trace(folder: Path) -> str:
    """What is said of a folder without a trace."""
    others = folder.is_dir() and any(folder.iterdir())
    return f"no {SUFFIX} file there{'; read files of another program with --mapping FILE' if others else ''}"


def _files(path: Path) -> list[Path]:
    """The files of a folder, of a pattern (of file names), or the one."""
    if path.is_dir():
        return sorted(path.glob(f"*{SUFFIX}"))
    return sorted(path.parent.glob(path.name)) if "*" in path.name else [path]


def load_all(target: str) -> Trace:
    """The trace that TARGET (`files_of`) names; Refusal where its files overlap, leave gaps or differ."""
    files = files_of(target)
    if any(ranks.of_ranks(file) for file in files):
        return replace(ranks.concatenated(files), called_with=Options(trace=target))
    traces = {str(path): load(path) for path in files}
    made = concatenated(traces) if len(traces) > 1 else next(iter(traces.values()))
    return replace(made, called_with=Options(trace=target))


def concatenated(traces: Mapping[str, Trace]) -> Trace:
    """The whole run of which each of `traces`, by the name of its file, holds a part. Refusal for one that is none,
    for parts that overlap, leave a gap, or are not of one run, and for keys that they read differently.
    """
    names, parts = list(traces), list(traces.values())
    for name, part in traces.items():
        if part.box is None:
            raise Refusal(
                f'{name}: each of {len(traces)} files must state its "window" of the run; this one states none'
            )
    first = parts[0]
    for name, part in traces.items():
        for field in (*_SHARED, "case_run"):
            if getattr(part, field) != getattr(first, field):
                raise Refusal(f"{names[0]} and {name} are not of one run: {field.replace('case_run', 'case')} differs")
        for what in ("stages", "sparse"):
            if {*getattr(part, what)} != {*getattr(first, what)}:
                other = sorted({*getattr(part, what)} ^ {*getattr(first, what)})
                raise Refusal(f"{names[0]} and {name} are not of one run: {', '.join(other)} is in only one of them")
    case = first.case_run
    _check_boxes(traces, case)
    known = ALGORITHMS[first.algorithm]

    def of_stages(what: str) -> dict[str, np.ndarray]:
        return {
            name: _whole(traces, name, known[name].axes, known[name].of_kv, [getattr(x, what)[name] for x in parts])
            for name in getattr(first, what)
        }

    made = replace(
        first,
        case=case,
        box=None,
        whole=None,
        inputs=_inputs(traces, case),
        stages=of_stages("stages"),
        sparse=of_stages("sparse"),
        versions={key: version for part in parts for key, version in part.versions.items()},
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        gates=tuple(dict.fromkeys(gate for part in parts for gate in part.gates)),
    )
    return check(made, ", ".join(names))


def _check_boxes(traces: Mapping[str, Trace], case: Case) -> None:
    """Refusal where two boxes overlap, or none holds some part."""
    boxes = {name: _box(part) for name, part in traces.items()}
    for (a, one), (b, other) in itertools.combinations(boxes.items(), 2):
        if both := _both(one, other):
            raise Refusal(f"{a} and {b} overlap: both hold {both}")
    edges = [
        sorted({0, case.sizes[axis], *(edge for box in boxes.values() for edge in box.edges()[axis])}) for axis in AXES
    ]
    for bounds in itertools.product(*(itertools.pairwise(some) for some in edges)):
        cell = Box(*(slice(*along) for along in bounds))
        if not any(_both(box, cell) == cell for box in boxes.values()):
            raise Refusal(f"no file covers {cell}; the files cover {'; '.join(map(str, boxes.values()))}")


def _both(one: Box, other: Box) -> Box | None:
    """What is in both boxes; None where nothing is."""
    pairs = zip(one.edges().values(), other.edges().values(), strict=True)
    found = [slice(max(x[0], y[0]), min(x[1], y[1])) for x, y in pairs]
    return Box(*found) if all(along.start < along.stop for along in found) else None


def _box(part: Trace) -> Box:
    assert part.box is not None
    return part.box


def _whole(traces: Mapping[str, Trace], name: str, axes: str, of_kv: bool, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """An array of the whole run, of those that the boxes hold. What several hold alike, such as the keys of a group,
    must be the same in all.
    """
    files, case = list(traces), next(iter(traces.values())).case_run
    sizes = {"b": case.batch, "h": case.kv_heads if of_kv else case.heads, "q": case.seqlen_q}
    bounded = [axis for axis in axes if axis in sizes]
    dims = tuple(sizes.get(axis, size) for axis, size in zip(axes, arrays[0].shape, strict=True))
    whole = np.zeros(dims, arrays[0].dtype)
    holder = np.full(tuple(sizes[axis] for axis in bounded), -1)  # which file an element is of
    for i, array in enumerate(arrays):
        box = _box(traces[files[i]])
        within = box.of_kv(case) if of_kv else box
        place = tuple(getattr(within, axis) if axis in AXES else slice(None) for axis in axes)
        if array.dtype != whole.dtype or array.shape != whole[place].shape:
            raise Refusal(f"{files[0]} and {files[i]} are not of one run: {name} differs in shape or dtype")
        held = holder[tuple(getattr(within, axis) for axis in bounded)]
        # only what has no axis of queries is held twice; its batches and heads come first
        if (twice := held >= 0).any() and whole[place][twice].tobytes() != array[twice].tobytes():
            other = files[int(held[twice].flat[0])]
            raise Refusal(f"{other} and {files[i]} are not of one run: both hold a part of {name}, which differs")
        whole[place] = array
        held[...] = i
    return whole


def _inputs(traces: Mapping[str, Trace], case: Case) -> dict[str, np.ndarray]:
    """What the kernel read. A causal mask, which parts of some queries hold, is the case's again."""
    made = {}
    for name, axes in INPUT_AXES.items():
        if arrays := _of_all(traces, {file: part.inputs.get(name) for file, part in traces.items()}, name):
            made[name] = _whole(traces, name, axes, name != "q", arrays)
    for name in ("bias", "dropout_mask"):
        given = {file: part.inputs.get(name) for file, part in traces.items()}
        if arrays := _of_all(traces, given, name):
            arrays = [spread(traces[file].case, x) for file, x in given.items() if x is not None]
            made[name] = _whole(traces, name, "bhqk", False, arrays)
    masks = {file: spread(part.case, visible(part.case, part.inputs)) for file, part in traces.items()}
    causal = {file: spread(part.case, _box(part).visible(case, {})) for file, part in traces.items()}
    if not all(np.array_equal(masks[file], causal[file]) for file in traces):
        made["mask"] = _whole(traces, "mask", "bhqk", False, list(masks.values()))
    return made


def _of_all(traces: Mapping[str, Trace], arrays: Mapping[str, np.ndarray | None], name: str) -> list[np.ndarray]:
    """The arrays; none where no file holds one. Refusal where some do."""
    lacking = [file for file, array in arrays.items() if array is None]
    if lacking and len(lacking) < len(traces):
        other = next(file for file in traces if file not in lacking)
        raise Refusal(f"{other} and {lacking[0]} are not of one run: {name} is in only one of them")
    return [array for array in arrays.values() if array is not None]
