"""Where kernels of ours make their stages, with faults put in, too: their sources alone, nothing runs."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from workbench import Case, run
from workbench.case.stages import QUANTISED_INPUTS
from workbench.cuda.build import build
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fault import Fault, applied
from workbench.cuda.kernels import KERNELS
from workbench.cuda.lines import lines_of
from workbench.cuda.plan import requested, resolve
from workbench.cuda.quantised import QUANTISER
from workbench.line import Line

CASE = Case(seqlen=96, heads=2, head_dim=32, causal=True)
SMALL = Case(seqlen=16, head_dim=8, block_q=16, block_k=16)
#: lines of a stage -> what they compute, in kernels without faults
STAGES = {
    ("flash", "qk"): "dot += s_q[r, d] * s_kv[c, d]",
    ("flash", "scores"): "s = libdevice.fmul_rn(dot, scale)",
    ("flash", "row_max"): "m = max(m_prev, row_max_of(tile_max))",
    ("flash", "probs"): "p = math.exp(s_p[r, c] - m_safe)",
    ("flash", "probs_cast"): "p_cast = CAST(p)",
    ("flash", "row_sum"): "l = l * correction + row_sum_of(tile_sum)",
    ("flash", "acc"): "acc[i] += p * s_kv[c, lane + i * LANES]",
    ("flash", "lse"): "lse[b, h, first_q + row] = m + math.log(l)",
    ("split_k", "partial_O"): "partial_O[b, h, split, row, d] = acc[i]",
    ("split_k", "merge_weight"): "weight = math.exp(partial_max[b, h, s, row] - m_safe)",
    ("split_k", "merge_sum"): "l += math.exp(",
    ("split_mma", "qk"): "right_sums = MMA(a, (b2, b3), (s[y + 4], ",
    ("split_mma", "acc"): "right_sums = MMA(a, (b2, b3), (acc[y + 4], ",
    ("split_mma", "merge_weight"): "weight = ptx.ex2_approx((partial_max[b, h, own, row] - safe) * exp2_scale)",
    ("fp8", "lut_k"): "s_lut_k[c] = decoded(c, k_scale)",
    ("fp8", "dequant_k"): "tile[i] = libdevice.float2half_rn(",
    ("fp8", "qk"): "s_p[(row + g + i // 2 * 8) * BLOCK_K + key + half + 2 * t + i % 2] = sums[i]",
    ("fp8", "acc"): "s_acc[r, d] = acc",
    ("fp8", "scale_k"): "def scale_of(",
    ("fp8", "codes_v"): "def encode(",
}


def lines(kernel: str, needs: Mapping[str, Any], faults: tuple[Fault, ...] = ()) -> Mapping[str, Line]:
    made = KERNELS[kernel]
    case = resolve(made, CASE.but(**{"dtype": made.dtypes[0]} | dict(needs)))
    wanted = requested(made, case, "all")
    functions = made.functions.items()
    builds = [build(file, name, made.constants(case), wanted, made.faults_of(file, faults)) for name, file in functions]
    found = lines_of(builds, wanted, faults)
    assert {*found} == {*wanted}, "every stage of ours has its line"
    return found


@cache
def clean(kernel: str, needs: frozenset[tuple[str, Any]] = frozenset()) -> Mapping[str, Line]:
    return lines(kernel, dict(needs))


@pytest.mark.parametrize(("kernel", "stage"), STAGES)
def test_the_line_of_a_stage(kernel: str, stage: str) -> None:
    assert clean(kernel)[stage].text.startswith(STAGES[kernel, stage])


@pytest.mark.parametrize("kernel", KERNELS)
def test_stages_have_lines_of_their_own(kernel: str) -> None:
    places = [(line.path, line.line) for stage, line in clean(kernel).items() if stage not in QUANTISED_INPUTS]
    # K and V are decoded by one function
    assert len(places) - len({*places}) == (1 if kernel == "fp8" else 0)


def changed(fault: Fault) -> tuple[str, list[str], set[int]]:
    """The file that a fault changes, its lines with the fault, and the numbers of those that are other ones."""
    kernel = KERNELS[fault.kernel]
    files = {path.name: path for path in (*kernel.functions.values(), kernel.file, QUANTISER)}
    file = files[fault.file or kernel.file.name]
    before, after = file.read_text(), applied(file.read_text(), [fault], file.name).splitlines()
    return (
        str(file),
        after,
        {i for i, pair in enumerate(zip(before.splitlines(), after, strict=True), 1) if len({*pair}) > 1},
    )


@pytest.mark.parametrize(
    "fault",
    [
        "reduce-double-counts-sum",
        "flash-scale-twice",
        "flash-scale-missing",
        "partial-offset-wrong-split",
        "block-scales-read-swizzled",  # where the cast behind a product is not it
    ],
)
def test_the_line_of_a_faulty_stage_is_the_one_that_was_changed(fault: str) -> None:
    """campaigns/tests/ counts those of the whole catalogue."""
    known = CATALOGUE[fault]
    line = lines(known.kernel, known.needs, (known,))[known.stages[0]]
    file, text, numbers = changed(known)
    assert line.path == file and line.line in numbers
    assert text[line.line - 1].strip().startswith(line.text), "the text is that of what ran"


def test_a_run_finds_them_when_it_is_asked() -> None:
    trace = run("split_k", SMALL, faults=["reduce-double-counts-sum"], backend="emulator")
    assert "lines" not in vars(trace)
    assert trace.lines["merge_weight"].text.endswith("* partial_sum[b, h, s, row]")
    assert {*trace.lines} == {*trace.stages}


def test_what_was_put_in_has_no_line() -> None:
    fed = {name: "reference" for name in ("partial_O", "partial_max", "partial_sum")}
    trace = run("split_k", SMALL, feed=fed, backend="emulator")
    assert {*fed} <= {*trace.put_in} and {*trace.lines} == {*trace.stages} - {*fed}


def test_codes_that_were_put_in_have_no_line() -> None:
    fed = dict.fromkeys(QUANTISED_INPUTS, "reference")
    trace = run("fp8", Case(seqlen=16), feed=fed, backend="emulator")
    assert {*trace.put_in} == {*fed} <= {*trace.stages} and {*trace.lines} == {*trace.stages} - {*fed}
