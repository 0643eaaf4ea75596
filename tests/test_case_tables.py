"""The tables of what targets take of a case are what the code says."""

import pytest

from tests import case_tables


@pytest.mark.parametrize("name", case_tables.TABLES)
def test_a_table_is_what_the_code_says(name):
    assert case_tables.written(name) == case_tables.TABLES[name](), "python -m tests.case_tables writes it anew"


def test_tables_tell_apart_what_is_taken_and_what_is_not():
    lines = case_tables.fields().splitlines()
    assert len(lines) == 2 + len(case_tables.SHOWN) and len({line.count("|") for line in lines}) == 1
    cells = [cell.strip() for line in lines[2:] for cell in line.split("|")[2:-2]]
    assert {"", "yes", "1"} < {*cells}
