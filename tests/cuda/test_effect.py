"""A fault that is in no line of what is built is refused, in words that say which case has it."""

import numpy as np
import pytest

from tests.refusals import refusal, refused
from workbench import Case, check, diff, run
from workbench.case.options import Options
from workbench.cuda.effect import effective
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import plan, resolve

BASE = dict(seqlen_q=20, seqlen_k=40, head_dim=32)
#: fault, a case without its lines -> what shows it, what the case has there, and a case with them; the lines are in
#: either branch of a kernel, in a device function that only a branch calls, in a branch or behind the end of one, or
#: read what another branch makes
FEWER, OWN = "a simpler case", "seqlen_q=20, seqlen_k=40, head_dim="
NOT_BUILT = [
    ("flash-no-barrier-after-load", {"head_dim": 256}, FEWER, f"{OWN}256, block_q=64, block_k=64", {"head_dim": 128}),
    ("flash-window-off-by-one", {}, "window=16,0", "window=None", {"window": (16, 0)}),
    ("flash-reads-past-keys", {"page_size": 16}, FEWER, f"{OWN}32, page_size=16, block_q=64, block_k=64", {}),
    ("flash-cache-length-off-by-one", {}, "batch=3, seqlens_k=33,100,70, seqlen_k=100, causal=False",
     "batch=1, seqlens_k=None, seqlen_k=40, causal=False", {"batch": 2, "seqlens_k": (40, 7)}),
    ("flash-page-offset-dropped", {}, "batch=3, seqlens_k=33,100,70, seqlen_k=100, page_size=16",
     "batch=1, seqlens_k=None, seqlen_k=40, page_size=None", {"page_size": 16}),
    ("partial-packed-causal", {"causal": True}, "pack_gqa=True, causal=True, heads=4, kv_heads=2",
     "pack_gqa=False, causal=True, heads=1, kv_heads=1", {"pack_gqa": True, "causal": True}),
    ("zero-point-forgotten", {"codes": "e4m3"}, "codes=int4", "codes=e4m3", {"codes": "int4"}),
    ("float4-subnormal-is-zero", {"codes": "int4"}, "codes=nvfp4", "codes=int4", {"codes": "nvfp4"}),
    ("int8-read-as-unsigned", {"codes": "e4m3"}, "codes=int8", "codes=e4m3", {"codes": "int8"}),
]  # fmt: skip


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize(("fault", "options", "words", "got", "others"), NOT_BUILT, ids=[one[0] for one in NOT_BUILT])
def test_a_fault_is_refused_where_a_switch_leaves_it_out(fault, options, words, got, others):
    name = CATALOGUE[fault].kernel
    case = Case(**BASE | options)
    said = f"fault {fault} changes nothing in {name} as built for this case. It shows with {words}; got {got}"
    assert refusal(run, name, case, faults=[fault], backend="emulator") == said
    assert refusal(check, name, case, faults=[fault]) == said
    assert not effective(CATALOGUE[fault], resolve(KERNELS[name], case))
    made = plan(name, Case(**BASE | others), Options(faults=[fault]))
    assert made.trace.faults == (fault,) and effective(CATALOGUE[fault], made.trace.case)


def test_the_command_line_refuses_it():
    words = "flash", "--head-dim", 256, "--seqlen", 20, "--fault", "flash-no-barrier-after-load"
    assert refused("diff", *words).startswith("fault flash-no-barrier-after-load changes nothing in flash as built ")


def test_of_several_faults_each_must_be_in_what_is_built():
    faults = ["flash-scale-twice", "flash-window-off-by-one"]
    assert "fault flash-window-off-by-one changes nothing in flash as built" in refusal(
        plan, "flash", Case(**BASE), Options(faults=faults)
    )


def test_a_mask_that_is_put_in_builds_its_lines():
    fault, case = "flash-mask-of-first-head", Case(**BASE)
    assert "; got mask_mod=None, heads=1, kv_heads=1" in refusal(plan, "flash", case, Options(faults=[fault]))
    drawn = dict(zip("qkv", case.inputs(), strict=True)) | {"mask": np.ones((1, 1, 20, 40), bool)}
    made = plan("flash", case.but(distribution="given"), Options(faults=[fault], inputs=drawn))
    assert made.trace.faults == (fault,)


@pytest.mark.campaign
def test_a_fault_of_a_launch_that_does_not_run_is_no_matter():
    """Fed with what is right, the rest of a faulty kernel shows that it is not to blame."""
    case = Case(**BASE, splits=2)
    fed = run("split_k", case, probes="lean", backend="emulator").stages
    partials = {name: fed[name] for name in ("partial_O", "partial_max", "partial_sum")}
    found = run("split_k", case, feed=partials, faults=["partial-tail-not-masked"], backend="emulator")
    assert diff(found).verdict in ("exact", "rounding")


def test_a_fault_that_reads_what_a_case_has_not_is_refused():
    assert refusal(run, "flash", Case(**BASE), faults=["flash-q-start-of-k"], backend="emulator") == (
        "flash-q-start-of-k reads cu_seqlens_k, which flash lacks for this case; it shows with batch=3, "
        "seqlens_q=(40, 9, 65), seqlens_k=(33, 100, 70), seqlen_q=65, seqlen_k=100"
    )


def test_other_cases_of_a_run_need_not_have_its_fault():
    """A law, a smaller case or a trial may leave it out."""
    made = plan("flash", Case(**BASE), Options(faults=["flash-window-off-by-one"]), again=True)
    assert made.trace.faults == ("flash-window-off-by-one",)
