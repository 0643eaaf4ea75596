"""Probes leave the arithmetic of machine code alone."""

import re
import shutil
import subprocess
from collections import Counter

import pytest
from cuda.pathfinder import find_nvidia_binary_utility

from tests.cuda.compiled.builds import (
    CODES_VARIANTS,
    FP8_MMA,
    FUNCTIONS,
    MMA,
    OF_FP8_MMA,
    OF_HOPPER,
    OF_MMA,
    OF_SPLITS,
    OF_TENSOR,
    SMALL,
    SPLIT_MMA,
    SPLIT_MMA_REDUCE,
    TENSOR,
    compiled,
    linked,
)
from workbench.case.case import Case
from workbench.cuda.faults.fault import Fault
from workbench.cuda.flash_build import Constants
from workbench.cuda.plan import resolve


@pytest.fixture
def operations(tmp_path):
    """operations(cubin): how often each float32 instruction occurs in it, by its name without modifiers."""
    nvdisasm = shutil.which("nvdisasm") or find_nvidia_binary_utility("nvdisasm")
    if nvdisasm is None:
        pytest.skip("needs nvdisasm; pip install nvidia-cuda-nvdisasm")

    def count(cubin):
        path = tmp_path / "kernel.cubin"
        path.write_bytes(cubin)
        listing = subprocess.run([nvdisasm, "-c", path], capture_output=True, text=True, check=True).stdout
        found = Counter(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", listing, re.MULTILINE))
        return {name: found[name] for name in ("FADD", "FFMA", "FMUL", "FMNMX", "MUFU")}

    return count


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "cc"),
    [
        *(
            pytest.param(name, (9, 0), marks=() if name == "flash_forward" else pytest.mark.campaign)
            for name in FUNCTIONS
            if name not in OF_HOPPER
        ),
        pytest.param("flash_forward", (10, 0), marks=pytest.mark.campaign),
    ],
    ids=lambda x: x if isinstance(x, str) else f"sm_{x[0]}{x[1]}",
)
def test_probes_leave_contraction_alone(operations, name, cc):
    """Products and sums become FFMA only in machine code, depending on who else reads a product.

    A probe is one more reader: a probed product that otherwise only meets an addition would be fused in plain builds
    alone, and rounded once less there.
    """
    own = {"fp8_forward": CODES_VARIANTS[1], MMA: OF_MMA, FP8_MMA: OF_FP8_MMA}
    own |= dict.fromkeys((SPLIT_MMA, SPLIT_MMA_REDUCE), OF_SPLITS) | {TENSOR: OF_TENSOR}
    constants = own.get(name, Constants(**SMALL, dtype="float32"))
    plain, probed = (operations(linked(compiled(name, constants, kind), cc)[0]) for kind in (False, True))
    assert plain["FFMA"] >= 10
    # lanes of these add up a row for its probe alone, and of codes what they stand for, and acc, get their scale there
    kept = {MMA: ("FFMA", "FMUL", "MUFU"), FP8_MMA: ("FFMA", "MUFU")}.get(name, plain)
    assert {x: probed[x] for x in kept} == {x: plain[x] for x in kept}


@pytest.mark.campaign
def test_probe_that_undoes_a_contraction_would_be_seen(operations):
    product = "s_q[r, d] * s_kv[c, d]"
    probing = Fault("", "flash", "", f"dot += {product}", f"t = {product}; probe.qk[b, h, row, key] = t; dot += t", ())
    plain, probed = (
        operations(linked(compiled("flash_forward", Constants(**SMALL, dtype="float32"), kind, (probing,)), (9, 0))[0])
        for kind in (False, True)
    )
    assert plain["FFMA"] > probed["FFMA"] and plain["FMUL"] < probed["FMUL"]
    ptx = compiled("flash_forward", Constants(**SMALL, dtype="float32"), True, (probing,)).get_asm_str(cc=(9, 0))
    assert stored_and_added(ptx)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.campaign) for name in OF_HOPPER), "flash_forward"]
)
def test_no_probe_stores_a_product_that_is_added(name):
    """What a compiler fuses without that probe. Instructions of whole kernels are no measure where loops are taken apart,
    whose copies it merges as it likes.
    """
    kernel, _ = FUNCTIONS[name]
    case = Case(head_dim=64, dtype=kernel.dtypes[-1], causal=True)
    constants = kernel.constants(resolve(kernel, case)) if name in OF_HOPPER else Constants(**SMALL, dtype="float32")
    ptx = compiled(name, constants, True).get_asm_str(cc=(9, 0))
    assert len(re.findall(r"\bst\.global\.(cs\.v2\.)?f32\s", ptx)) > 10 and re.search(r"\bmul\.f32\s", ptx)
    assert not stored_and_added(ptx)


def stored_and_added(ptx):
    """Registers of products that are stored, and else only added: by instructions that may become one with the product's,
    which those that say how they round may not.
    """
    lines = re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.:]+)\s+(.*);$", ptx, re.MULTILINE)
    users = {text.partition(",")[0]: set() for name, text in lines if name == "mul.f32"}
    for name, text in lines:
        first, *others = re.findall(r"%f\d+", text) or [""]
        stores = name.startswith("st.global.")  # one, or several neighbours
        for register in [first, *others] if name.startswith("st.") else others:
            users.get(register, set()).add("store" if stores else name)
    sums = {"add.f32", "sub.f32"}
    return [x for x, names in users.items() if names & sums and "store" in names and names <= {*sums, "store"}]
