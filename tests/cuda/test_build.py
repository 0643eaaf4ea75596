"""What a build does to a kernel's source: probes kept or dropped, constants bound, line numbers left alone."""

import ast
import re
import textwrap
from dataclasses import replace

import pytest

from workbench.case.stages import ALGORITHMS, QUANTISED_INPUTS, STAGES, absent
from workbench.cuda.build import build
from workbench.cuda.device import LANES
from workbench.cuda.faults.fault import Fault
from workbench.cuda.flash_build import SWITCHES, Constants
from workbench.cuda.flash_mma_build import Constants as MmaConstants
from workbench.cuda.flash_tensor_build import Constants as TensorConstants
from workbench.cuda.flash_wgmma_build import Constants as WgmmaConstants
from workbench.cuda.fp8_build import Constants as QuantisedConstants
from workbench.cuda.fp8_mma import Constants as Fp8MmaConstants
from workbench.cuda.fp8_wgmma import PROBS_DTYPE
from workbench.cuda.fp8_wgmma import Constants as Fp8WgmmaConstants
from workbench.cuda.fragments_build import SWITCHES as MMA_SWITCHES
from workbench.cuda.kernel import HEAD_DIMS
from workbench.cuda.kernels import KERNELS
from workbench.cuda.split_mma_build import Constants as SplitConstants
from workbench.refusal import Refusal

CONSTANTS = Constants(block_q=16, block_k=32, head_dim=64, dtype="float32")

#: stages that reach the host as the buffers the kernels themselves write or read
OWN_BUFFERS = {
    "flash": {"out", "lse"},
    "split_k": {"out", "lse", "partial_O", "partial_max", "partial_sum"},
    "fp8": {"out", "lse", *QUANTISED_INPUTS},
}


def stages_with_softcap(kernel):
    lacks = {*absent(numbers=() if kernel.quantised else {"softcap"}), *kernel.without}
    lacks |= {"lut_k", "lut_v"} if kernel.name in ("fp8_mma", "fp8_wgmma") else set()  # which have no tables
    return tuple(name for name in ALGORITHMS[kernel.algorithm] if name not in lacks)


def constants_of(kernel):
    if kernel.name == "split_mma":
        return SplitConstants(16, 16, 64, "float16", tuple(name for name in MMA_SWITCHES if name != "PADDED"))
    if kernel.name == "flash_tensor":
        return TensorConstants(16, 16, 64, "float16", TensorConstants.SWITCHED)
    if kernel.name == "flash_mma":
        return MmaConstants(16, 16, 64, "float16", tuple(name for name in MMA_SWITCHES if name != "PADDED"))
    if kernel.name == "flash_wgmma":
        return WgmmaConstants(64, 64, 64, "float16", WgmmaConstants.SWITCHED)
    if kernel.name == "fp8_mma":
        return Fp8MmaConstants(16, 32, 64, "float16", ("HEADS", "CAUSAL", "SCALED"))
    if kernel.name == "fp8_wgmma":
        return Fp8WgmmaConstants(64, 64, 64, PROBS_DTYPE, ("CAUSAL", "SCALED"))
    if kernel.quantised:
        return QuantisedConstants(16, 32, 64, "e5m2", "mma", "table", "float16")
    return replace(CONSTANTS, switches=tuple(name for name in SWITCHES if kernel.splits or name != "SPLIT"))


@pytest.fixture
def built(tmp_path):
    """built(text, probes, ...): the body of `def kernel(x, out):` after a build, as text, and the build itself."""

    def make(body, probes=(), faults=(), constants=CONSTANTS):
        file = tmp_path / "kernel.py"
        file.write_text("def kernel(x, out):\n" + textwrap.indent(textwrap.dedent(body), "    "))
        made = build(file, "kernel", constants, probes, faults)
        (function,) = made.source.tree.body
        return "\n".join(ast.unparse(statement) for statement in function.body), made

    return make


def arguments(made):
    code = made.for_numba.__code__
    return code.co_varnames[: code.co_argcount]


def unindented(text):
    return textwrap.dedent(text).strip()


# ---- probes


@pytest.mark.parametrize(
    ("body", "probes", "expected"),
    [
        pytest.param(
            "s = x[0]\nprobe.scores[0] = s\nout[0] = s",
            [],
            "s = x[0]\nout[0] = s",
            id="dropped",
        ),
        pytest.param(
            "s = x[0]\nprobe.scores[0, 1] = s\nout[0] = s",
            ["scores"],
            "s = x[0]\nprobe_scores[0, 1] = s\nout[0] = s",
            id="kept",
        ),
        pytest.param(
            "probe.acc[0] = x[0]\nprobe.scores[0] = x[1]\nout[0] = 1",
            ["scores"],
            "probe_scores[0] = x[1]\nout[0] = 1",
            id="one kept, one dropped",
        ),
        pytest.param(
            """
            if x[0] > 0:
                probe.scores[0] = x[0]
            out[0] = 1
            """,
            [],
            "out[0] = 1",
            id="an empty block goes with its header",
        ),
        pytest.param(
            """
            if x[0] > 0:
                for i in range(4):
                    if i < 3:
                        probe.scores[i] = x[i]
            out[0] = 1
            """,
            [],
            "out[0] = 1",
            id="so do the blocks around it",
        ),
        pytest.param(
            """
            if x[0] > 0:
                probe.scores[0] = x[0]
                out[0] = 1
            """,
            [],
            """
            if x[0] > 0:
                out[0] = 1
            """,
            id="a block that does more stays",
        ),
        pytest.param(
            """
            if x[0] > 0:
                out[0] = 1
            else:
                probe.scores[0] = x[0]
            """,
            [],
            """
            if x[0] > 0:
                out[0] = 1
            """,
            id="an empty else goes",
        ),
        pytest.param(
            """
            if x[0] > 0:
                probe.scores[0] = x[0]
            else:
                out[0] = 1
            """,
            [],
            """
            if x[0] > 0:
                pass
            else:
                out[0] = 1
            """,
            id="an else stays where its if is empty",
        ),
        pytest.param(
            """
            if x[0] > 0:
                probe.scores[0] = x[0]
            elif x[1] > 0:
                probe.acc[0] = x[1]
            else:
                probe.lse[0] = x[2]
            out[0] = 1
            """,
            [],
            "out[0] = 1",
            id="if, elif and else all empty",
        ),
        pytest.param(
            """
            if x[0] > 0:
                pass
            other.scores[0] = 1
            a.probe.scores[0] = 1
            probe = x[0]
            """,
            [],
            """
            if x[0] > 0:
                pass
            other.scores[0] = 1
            a.probe.scores[0] = 1
            probe = x[0]
            """,
            id="what only looks like a probe stays",
        ),
    ],
)
def test_probes_in_the_source(built, body, probes, expected):
    text, _ = built(body, probes)
    assert text == unindented(expected)


def test_wanted_probes_become_the_last_arguments_in_order_of_the_source(built):
    body = "probe.acc[0] = x[0]\nprobe.scores[0] = x[1]\nprobe.acc[1] = x[2]\nprobe.lse[0] = x[3]"
    _, made = built(body, ["scores", "row_max", "acc"])
    assert made.probes == ("acc", "scores")
    assert arguments(made) == ("x", "out", "probe_acc", "probe_scores")


def test_probes_run_as_stores_to_their_buffers(built):
    _, made = built("for i in range(3):\n    s = 2 * x[i]\n    probe.scores[i] = s\n    out[i] = s + 1", ["scores"])
    out, scores = [0] * 3, [0] * 3
    made.source.namespace["kernel"]([1, 2, 3], out, scores)
    assert (out, scores) == ([3, 5, 7], [2, 4, 6])


def simple_statements(function):
    """(line, text) of every statement of a function that is not a block."""
    return {
        (node.lineno, ast.unparse(node))
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    }


def function_of(tree, name):
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return found


def not_taken(function, bound):
    """Statements of branches of switches that are off, as of `simple_statements`."""
    off = []
    for node in ast.walk(function):
        name = ast.unparse(node.test).removeprefix("not ") if isinstance(node, ast.If) else ""
        if name in bound:
            negated = ast.unparse(node.test) != name
            off.append(ast.Module(node.orelse if bound[name] is not negated else node.body, []))
    return set().union(*map(simple_statements, off))


@pytest.mark.campaign(every=3)
@pytest.mark.parametrize(
    ("kernel", "function"),
    [
        pytest.param(kernel, function, id=f"{kernel.name} {function}")
        for kernel in KERNELS.values()
        for function in kernel.functions
    ],
)
def test_every_build_keeps_the_line_numbers_of_the_file(kernel, function):
    file = kernel.functions[function]
    text = file.read_text()
    written = function_of(ast.parse(text), function)
    stages = stages_with_softcap(kernel)
    plain, probed = (build(file, function, constants_of(kernel), probes, ()) for probes in ((), stages))

    in_file = simple_statements(written) - not_taken(written, constants_of(kernel).names())
    probe_lines = {(line, statement) for line, statement in in_file if statement.startswith("probe.")}
    for_probes = {(line, statement) for line, statement in in_file if "= probe(" in statement}
    assert len(probe_lines) >= 3
    assert simple_statements(function_of(plain.source.tree, function)) == in_file - probe_lines - for_probes
    kept = simple_statements(function_of(probed.source.tree, function))
    values = {(line, re.sub(r"= \((.*),\)$", r"= probe(\1)", x)) for line, x in kept if line in dict(for_probes)}
    assert values == for_probes
    several = r"(\w+)\((probe_\w+), \(([^()]*)\), ([^,]+), (\w+), (.*)\)$"  # what a call stores, as it was written
    written_so = {(line, re.sub(several, r"\2[\3, \4:\5] = \1(\6)", x)) for line, x in kept}
    rest = {(line, x.replace("probe_", "probe.")) for line, x in written_so if line not in dict(for_probes)}
    assert rest == in_file - for_probes
    for made in (plain, probed):
        code = made.for_numba.__code__
        assert (code.co_filename, code.co_firstlineno) == (str(file), written.lineno)


# ---- constants, faults, other functions of the file


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_capitals_are_bound(built, head_dim):
    _, made = built("out[0] = BLOCK_Q")
    assert made.source.namespace["BLOCK_Q"] == 16
    names = Constants(16, 32, head_dim, "bfloat16", switches=("WHOLE",) if head_dim <= 128 else ()).names()
    assert {name: value for name, value in names.items() if isinstance(value, int)} == {
        "BLOCK_Q": 16,
        "BLOCK_K": 32,
        "HEAD_DIM": head_dim,
        "DIMS": head_dim // LANES,
        "CHUNK": 64 if head_dim > 128 else head_dim,
        "THREADS": 16 * LANES,
        **dict.fromkeys(SWITCHES, False),
        "WHOLE": head_dim <= 128,
    }
    out = [0]
    made.source.namespace["kernel"]([], out)
    assert out == [16]


def test_capitals_of_a_kernel_on_codes():
    names = QuantisedConstants(16, 48, 32, "e4m3", "scalar", "direct", "float16").names()
    assert {name: value for name, value in names.items() if isinstance(value, int)} == {
        "BLOCK_Q": 16,
        "BLOCK_K": 48,
        "HEAD_DIM": 32,
        "DIMS": 32 // LANES,
        "LD": 40,
        "Q_SIZE": 16 * 40,
        "KV_SIZE": 48 * 40,
        "S_SIZE": 16 * 48,
        "THREADS": 16 * LANES,
        "WARPS": 2,
        "SIMULATED": False,
        **dict.fromkeys(("INT8", "FOUR_BITS", "E8M0", "E4M3", "ZEROS", "TENSOR_SCALE"), False),
        **{"HEADS": True, "BLOCK": 0, "CODED_Q": True},
        "FRACTION_BITS": 3,
        "TABLE": False,
        "MMA": False,
    }


def test_numba_is_told_how_many_threads_to_expect():
    made = build(KERNELS["flash"].file, "flash_forward", Constants(128, 16, 64, "float32"), (), ())
    assert made.cuda_options == {"lineinfo": True, "launch_bounds": 512}


def test_faults_change_the_text_before_probes_are_looked_at(built):
    fault = Fault("f", "synthetic", "", "out[0] = x[0]", "probe.scores[0] = x[0]; out[0] = x[1]", ("scores",))
    text, made = built("out[0] = x[0]", ["scores"], (fault,))
    assert text == "probe_scores[0] = x[0]\nout[0] = x[1]"
    assert made.probes == ("scores",)


def test_fault_whose_text_no_longer_matches_is_refused(built):
    fault = Fault("stale", "synthetic", "", "out[0] = x[9]", "out[0] = x[8]", ("out",))
    with pytest.raises(Refusal) as refusal:
        built("out[0] = x[0]", [], (fault,))
    assert str(refusal.value) == (
        "fault stale: its text must occur exactly once in kernel.py; it occurs 0 times:\nout[0] = x[9]"
    )


def test_other_kernels_of_the_file_are_left_out():
    made = build(KERNELS["split_k"].file, "split_k_reduce", CONSTANTS, (), ())
    names = [node.name for node in made.source.tree.body if isinstance(node, ast.FunctionDef)]
    assert names == ["split_k_reduce"]


# ---- switches


@pytest.mark.parametrize("split", [False, True])
def test_a_switch_leaves_the_branch_that_is_taken(built, split):
    body = """
    if SPLIT:
        out[0] = 1
    else:
        out[0] = 2
    for i in range(4):
        if SPLIT:
            out[1] = 3
    if not SPLIT:
        out[2] = 4
    """
    text, _ = built(body, constants=replace(CONSTANTS, switches=("SPLIT",) * split))
    assert text == ("out[0] = 1\nfor i in range(4):\n    out[1] = 3" if split else "out[0] = 2\nout[2] = 4")


def test_parameters_that_only_a_branch_not_taken_reads_are_no_arguments(built):
    body = "if SPLIT:\n    out[0] = x[0]\nelse:\n    probe.scores[0] = 1"
    assert arguments(built(body, ["scores"])[1]) == ("probe_scores",)
    _, made = built(body, ["scores"], constants=replace(CONSTANTS, switches=("SPLIT",)))
    assert arguments(made) == made.parameters == ("x", "out")


def test_parameters_that_nobody_reads_stay_arguments(built):
    _, made = built("pass")
    assert arguments(made) == made.parameters == ("x", "out")


# ---- the kernels' probes against the vocabulary


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_probes_and_buffers_cover_exactly_the_stages(kernel):
    named = {
        node.attr
        for file in {*kernel.functions.values()}
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "probe"
    }
    assert named <= {*STAGES}
    named &= {*stages_with_softcap(kernel)}  # a source may be of two kernels
    assert named | OWN_BUFFERS[kernel.algorithm] == set(stages_with_softcap(kernel))
    assert not named & OWN_BUFFERS[kernel.algorithm]
    stages, constants = stages_with_softcap(kernel), constants_of(kernel)
    kept = [build(file, function, constants, stages, ()) for function, file in kernel.functions.items()]
    assert {stage for made in kept for stage in made.probes} == named
    for made in kept:
        assert arguments(made)[-len(made.probes) :] == tuple(f"probe_{stage}" for stage in made.probes)
