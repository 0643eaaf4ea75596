"""The campaign of faults and laws: a row of a fault that breaks some, and the tables."""

from campaigns.laws import SCHEMA, fault_row, tables
from workbench.explore.laws.every import LAWS


def test_a_fault_breaks_laws_that_the_clean_kernel_keeps() -> None:
    row = fault_row("flash-lse-base-2", cases=1, seed=0)
    assert row["cases"] == row["caught"] == 1 and row["clean"] == {}
    assert "exact-inputs" in row["broken"]
    results = {"schema": SCHEMA, "seed": 0, "faults": [row], "effective": 1, "caught": 1, "clean": 0}
    faults, by_law, (total,) = tables({**results, "laws": {name: int(name in row["broken"]) for name in LAWS}})
    assert faults[0]["fault"] == "flash-lse-base-2" and len(by_law) == len(LAWS)
    assert total["share"] == "100.0%" and total["laws broken by clean kernels"] == 0
