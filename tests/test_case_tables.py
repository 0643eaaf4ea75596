"""The table of what targets take of a case."""

from docs.generators import cases


def test_it_tells_apart_what_is_taken_and_what_is_not():
    lines = cases.fields().splitlines()
    assert len(lines) == 2 + len(cases.SHOWN) and len({line.count("|") for line in lines}) == 1
    cells = [cell.strip() for line in lines[2:] for cell in line.split("|")[2:-2]]
    assert {"", "yes", "1"} < {*cells}
