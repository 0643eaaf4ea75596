"""How fast the emulator is: warm, at its start, and against numba's own CUDA simulator running the same source.

The simulator (NUMBA_ENABLE_CUDASIM) has neither warp shuffles nor libdevice, which our kernels use. For the comparison
they are edited (`EDITS`): the threads of a row exchange values through shared memory, and scores are a plain product,
which neither runner fuses. Both run the same edited text on the same arrays. Edited sums are added in the order of the
shuffles, so that the edited kernel gives what the original gives, bit by bit.
"""

import ast
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from campaigns.timed import python, seconds
from workbench.case.case import Case
from workbench.case.inputs import by_name
from workbench.case.options import Options
from workbench.case.stages import RESULTS
from workbench.machine import machine
from workbench.progress import step

# The emulator is imported in functions: it cannot be where numba.cuda is the simulator, which is where `simulate` runs.

SCHEMA = "workbench.bench-emulator/1"
_OUTPUT = Options(probes="output", backend="emulator")
SEQLENS = (64, 256, 512)
#: kernel -> sequence lengths for the simulator, which takes half a minute for flash at 512
SIMULATED: Mapping[str, Sequence[int]] = {"flash": (64, 256, 512), "split_k": (64, 256)}

REPEATS = 9
PATIENCE_S = 3.0  #: the simulator repeats no more once its runs have taken this long together

# Seconds, measured on 2 cores, for estimates only: to compile a kernel function, to start a process, and what a query
# and key cost the simulator.
COMPILE_S, START_S, SIMULATED_PAIR_S = 2.5, 1.0, 1.2e-4

#: text of a kernel -> what takes its place; each row has LANES = 4 threads, whose values two shuffles add as below
EDITS = {
    "    s_p = cuda.shared.array((BLOCK_Q, BLOCK_K), float32)\n": """\
    s_p = cuda.shared.array((BLOCK_Q, BLOCK_K), float32)
    s_max = cuda.shared.array((BLOCK_Q, LANES), float32)
    s_sum = cuda.shared.array((BLOCK_Q, LANES), float32)
""",
    "libdevice.fmul_rn(dot, scale)": "dot * scale",
    "        m = max(m_prev, row_max_of(tile_max))\n": """\
        s_max[r, lane] = tile_max
        cuda.syncthreads()
        m = max(m_prev, max(max(s_max[r, 0], s_max[r, 1]), max(s_max[r, 2], s_max[r, 3])))
""",
    "        l = l * correction + row_sum_of(tile_sum)\n": """\
        s_sum[r, lane] = tile_sum
        cuda.syncthreads()
        l = l * correction + ((s_sum[r, 0] + s_sum[r, 2]) + (s_sum[r, 1] + s_sum[r, 3]))
""",
}


def measure(
    *,
    kernels: Sequence[str] = ("flash", "split_k"),
    seqlens: Sequence[int] = SEQLENS,
    simulated: Mapping[str, Sequence[int]] = SIMULATED,
    **options: Any,
) -> dict[str, Any]:
    """The JSON document of one run of the benchmark: float32, causal, one head, default tiles; `options` go to Case.

    A row of `runs` is a kernel at a sequence length. Medians in seconds of `repeats` warm runs on the emulator:

    - `plain_s`, `probed_s`: a whole run as `workbench.run` does it, with only the output and with every stage dumped;
    - `watched_s`: a whole run as `workbench.check` does it, with only the output; `watched_ratio` is watched_s over
      plain_s;
    - `edited_s`: the bare launches of the edited kernel.

    For the lengths in `simulated`, None for others: `simulator_s` is the median of `simulator_repeats` runs of the same
    launches, `ratio` is simulator_s / edited_s, `max_abs_difference` is the largest between their out and lse, and
    `edited_equals_plain` says whether the edited and the original kernel agree bit by bit on the emulator.

    A row of `starts` is a kernel's first run in a fresh process, plain or `watched`: `cold_run_s` with an empty compile
    cache, most of it compiling, and `cached_run_s` with the code on disk; `cold_process_s` and `cached_process_s` add
    Python's start and all imports.
    """
    from workbench.cuda.kernels import KERNELS
    from workbench.cuda.run import run_kernel

    found = machine()  # before this run adds its own load
    cases = [(name, Case(causal=True, seqlen=seqlen, **options)) for name in kernels for seqlen in seqlens]
    functions = sum(len(KERNELS[name].functions) for name in kernels)
    with step("start the emulator in fresh processes", 2 * COMPILE_S * functions + 4 * START_S * len(kernels)):
        starts = [_first_runs(name, seqlens[0], options, watched) for name in kernels for watched in (False, True)]
    with step("run the emulator", 2 * COMPILE_S * functions):
        runs = [_on_emulator(name, case) for name, case in cases]
    for row, (name, case) in zip(runs, cases, strict=True):
        seqlen = row["seqlen"]
        if seqlen in simulated.get(name, ()):
            expected = START_S + PATIENCE_S + SIMULATED_PAIR_S * seqlen**2
            with step(f"run {name} at seqlen {seqlen} in numba's simulator", expected):
                row |= _against_simulator(name, case)
    name, case = cases[0]
    return {
        "schema": SCHEMA,
        "versions": dict(run_kernel(name, case, _OUTPUT).versions),
        "machine": found,
        "case": {field: getattr(case, field) for field in ("dtype", "causal", "batch", "heads", "head_dim")},
        "runs": runs,
        "starts": starts,
    }


def tables(results: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The document as tables for a screen: rows of equal columns."""
    return [results["runs"], results["starts"]]


def _on_emulator(name: str, case: Case) -> dict[str, Any]:
    """A row of `runs`, with blanks for the simulator."""
    from workbench.cuda import plan
    from workbench.cuda.check import check
    from workbench.cuda.kernels import KERNELS
    from workbench.cuda.run import run_kernel

    resolved = plan.resolve(KERNELS[name], case)
    inputs = by_name(case)
    medians = {}
    for field, probes in (("plain_s", "output"), ("probed_s", "all")):
        call = partial(run_kernel, name, case, Options(probes=probes, backend="emulator", inputs=inputs))
        call()  # compiles, or reads the cache
        medians[field] = median(seconds(call, REPEATS))
    watched = partial(check, name, case, probes="output")
    watched()
    medians["watched_s"] = median(seconds(watched, REPEATS))
    return {
        "kernel": name,
        "seqlen": case.seqlen_k,
        "tiles": f"{resolved.block_q}x{resolved.block_k}",
        "threads": KERNELS[name].constants(resolved).threads,
        "repeats": REPEATS,
        **medians,
        "watched_ratio": round(medians["watched_s"] / medians["plain_s"], 1),
        **dict.fromkeys(("edited_s", "simulator_s", "simulator_repeats", "ratio")),
        **dict.fromkeys(("max_abs_difference", "edited_equals_plain")),
    }


@dataclass(frozen=True)
class Launch:
    """One launch of an edited kernel function: plain data, which crosses to the simulator's process."""

    text: str  #: the module with the function
    function: str
    constants: Mapping[str, int]  #: names in capitals; LOAD and STORE are float32
    grid: tuple[int, int, int]
    threads: int
    arguments: tuple[Any, ...]  #: scalars, and arrays by name

    def values(self, arrays: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        """The arguments, with the arrays for their names."""
        return tuple(arrays[argument] if isinstance(argument, str) else argument for argument in self.arguments)

    def namespace(self) -> dict[str, Any]:
        """What executing the module leaves, the function among it."""
        from numba import float32

        names = {"__name__": "edited", "LOAD": float32, "STORE": float32, "CAST": float32, **self.constants}
        exec(compile(self.text, "edited.py", "exec"), names)
        return names


def _against_simulator(name: str, case: Case) -> dict[str, Any]:
    """What a row of `runs` says of the edited kernel and the simulator."""
    from workbench.cuda.emulator import Source, compile
    from workbench.cuda.run import run_kernel

    launches, arrays = _edited(name, case)
    emulated = {key: array.copy() for key, array in arrays.items()}
    compiled = [compile(Source(x.function, ast.parse(x.text), x.namespace(), "edited.py")) for x in launches]

    def emulate() -> None:
        for launch, function in zip(launches, compiled, strict=True):
            function(launch.grid, launch.threads, launch.values(emulated))

    emulate()  # compiles, or reads the cache
    edited_s = median(seconds(emulate, REPEATS))
    command = "from campaigns.emulator_speed import simulate; simulate()"
    answer = python(command, pickle.dumps((launches, arrays)), NUMBA_ENABLE_CUDASIM="1")
    taken, simulated = pickle.loads(answer)
    plain = run_kernel(name, case, _OUTPUT).stages
    return {
        "edited_s": edited_s,
        "simulator_s": median(taken),
        "simulator_repeats": len(taken),
        "ratio": round(median(taken) / edited_s, 1),
        "max_abs_difference": max(float(np.abs(emulated[key] - simulated[key]).max()) for key in RESULTS),
        "edited_equals_plain": all(np.array_equal(emulated[key], plain[key]) for key in RESULTS),
    }


def simulate() -> None:
    """Run the pickled launches and arrays of stdin in numba's simulator; pickle seconds and arrays to stdout."""
    from numba import cuda

    launches, arrays = pickle.load(sys.stdin.buffer)
    functions = [cuda.jit(launch.namespace()[launch.function]) for launch in launches]

    def run() -> None:
        for launch, function in zip(launches, functions, strict=True):
            function[launch.grid, launch.threads](*launch.values(arrays))

    pickle.dump((seconds(run, REPEATS, PATIENCE_S), arrays), sys.stdout.buffer)


def _edited(name: str, case: Case) -> tuple[list[Launch], dict[str, np.ndarray]]:
    """The launches of a kernel after EDITS, and its arrays, those that it writes full of NaN."""
    from workbench.case.stages import ALGORITHMS, shape
    from workbench.cuda import plan
    from workbench.cuda.build import build
    from workbench.cuda.kernels import KERNELS

    kernel = KERNELS[name]
    case = plan.resolve(kernel, case)
    constants, scalars = kernel.constants(case), plan.scalars(case)
    numbers = {key: value for key, value in constants.names().items() if isinstance(value, int)}
    arrays = by_name(case)
    launches = []
    for function, grid, _ in plan.launches(case, kernel):
        built = build(kernel.functions[function], function, constants, (), ())
        text, names = ast.unparse(built.source.tree), built.parameters
        for before, after in EDITS.items():
            text = text.replace(before, after)
        values = tuple(scalars.get(argument, argument) for argument in names)
        launches.append(Launch(text, function, numbers, grid, constants.threads, values))
        for stage, axes in ALGORITHMS[kernel.algorithm].items():
            if stage in names:
                arrays[stage] = np.full(shape(axes, case.sizes), np.nan, np.float32)
    return launches, arrays


def _first_runs(name: str, seqlen: int, options: Mapping[str, Any], watched: bool) -> dict[str, Any]:
    """A row of `starts`."""
    row: dict[str, Any] = {"kernel": name, "seqlen": seqlen, "watched": watched}
    command = "from campaigns.emulator_speed import first_run; first_run()"
    given = json.dumps([name, {"seqlen": seqlen, **options}, watched]).encode()
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("cold", "cached"):
            started = time.perf_counter()
            run_s = float(python(command, given, WORKBENCH_CACHE=folder, NUMBA_CACHE_DIR=""))
            row |= {f"{cache}_run_s": run_s, f"{cache}_process_s": time.perf_counter() - started}
    return row


def first_run() -> None:
    """Run the kernel and case of stdin (JSON); write the seconds to stdout, imports excluded."""
    from workbench.cuda.check import check
    from workbench.cuda.run import run_kernel

    name, options, watched = json.load(sys.stdin)
    case = Case(causal=True, **options)
    started = time.perf_counter()
    if watched:
        check(name, case, probes="output")
    else:
        run_kernel(name, case, _OUTPUT)
    sys.stdout.write(str(time.perf_counter() - started))
