"""Watched runs of the kernel on codes: nothing is found, and a table that is not full is, with table and line."""

from pathlib import Path

import numpy as np
import pytest

from workbench import Case
from workbench.case.options import Options
from workbench.cuda.check import check
from workbench.cuda.faults.catalogue import CATALOGUE
from workbench.cuda.faults.fault import Fault
from workbench.cuda.kernels import KERNELS
from workbench.cuda.plan import plan

SMALL = dict(head_dim=32, block_q=32, block_k=32)
#: every format, scores and decoding is in one of them, each 5 seconds of compiling; `workbench check fp8 --codes
#: simulated,e4m3,e5m2,scores=mma/scalar,decode=table/direct` tries them all
VARIANTS = {
    "simulated mma table": dict(codes="simulated"),
    "e4m3 scalar direct": dict(codes="e4m3", scores="scalar", decode="direct"),
    "e5m2 mma direct": dict(codes="e5m2", decode="direct"),
}
READ = "tile[i] = libdevice.float2half_rn(table[code] if TABLE else decoded(code, scale))"


@pytest.mark.campaign
@pytest.mark.parametrize(
    # the first of them in test_check.py as well
    "variant",
    [pytest.param(name, marks=pytest.mark.campaign) if i else name for i, name in enumerate(VARIANTS)],
)
def test_nothing_is_found(variant):
    """Ragged tiles, grouped heads, several batches; causal with rows that see no key, and full."""
    for shape in (dict(batch=2, seqlen_q=70, seqlen_k=40, causal=True), dict(seqlen_q=33, seqlen_k=65)):
        found = check("fp8", Case(heads=4, kv_heads=2, **shape, **SMALL, **VARIANTS[variant]))
        assert found.findings == ()
        assert found.blocks >= 8


CODES_OF_LOOP, ONE_STORE = "range(cuda.threadIdx.x, CODES, THREADS)", "s_lut_k[c] = decoded(c, k_scale)"
#: text and what takes its place: one build of both, of which the number of queries chooses one
PARTLY = {
    "the loop ends at 255": (CODES_OF_LOOP, CODES_OF_LOOP.replace("CODES,", "CODES - 1 if seqlen_q == 40 else CODES,")),
    "the table of K alone": (ONE_STORE, f"if c != 128 or seqlen_q != 41: {ONE_STORE}"),
}


@pytest.mark.campaign
@pytest.mark.parametrize(("queries", "entry", "tables"), [(40, 255, ["s_lut_k", "s_lut_v"]), (41, 128, ["s_lut_k"])])
def test_an_entry_left_unwritten_is_found_in_its_table_where_it_is_read(queries, entry, tables, monkeypatch):
    """One-hot inputs hold the largest value, which is code 255 of simulated codes, and 0, which is code 128."""
    for name, texts in PARTLY.items():
        monkeypatch.setitem(CATALOGUE, name, Fault(name, "fp8", "made by a test", *texts))
    case = Case(heads=2, seqlen=queries, distribution="one-hot", **SMALL)
    stages = plan("fp8", case, Options(probes="output")).arrays
    assert all(np.any(stages[f"codes_{name[-1]}"] == entry) for name in tables), "the entry is read"
    found = check("fp8", case, faults=[*PARTLY], probes="output")
    assert [(finding.kind, finding.array, finding.index) for finding in found.findings] == [
        ("uninitialised-read", name, (entry,)) for name in tables
    ]
    for finding in found.findings:
        assert Path(finding.file) == KERNELS["fp8"].file and found.line(finding.file, finding.line) == READ
