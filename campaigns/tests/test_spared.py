"""Which tests `make test` spares."""

from campaigns.spared import SPARED, spared


def test_a_test_is_spared_where_another_one_runs_its_lines() -> None:
    shared = {f"x.py:{line}" for line in range(8)}
    ran = {
        "tests/a/test_x.py::test_dear": (3.0, 0.0, shared),
        "tests/a/test_x.py::test_next": (2.0, 0.0, shared),
        "tests/a/test_x.py::test_third": (1.0, 0.0, shared),
        "tests/a/test_x.py::test_alone": (1.0, 0.0, {f"x.py:{line}" for line in range(10, 14)}),
        "tests/a/test_x.py::test_a_line_that_is_dear": (1.0, 0.0, {"x.py:20"}),
        "tests/a/test_x.py::test_cheap": (0.01, 0.0, {"x.py:1"}),
        "tests/a/test_x.py::test_of_a_process": (1.0, 1.0, set()),
        "tests/cuda/test_x.py::test_compiled": (1.0, 0.0, set()),
        "tests/test_x.py::test_the_repository": (1.0, 0.0, set()),
    }
    dear, following, third, line = (
        f"tests/a/test_x.py::test_{x}" for x in ("dear", "next", "third", "a_line_that_is_dear")
    )
    assert {*spared(ran)} == {dear, following, line}
    assert {*spared(ran, {following})} == {dear, third, line}


def test_what_is_spared_is_listed_once_and_in_order() -> None:
    listed = SPARED.read_text().splitlines()
    assert listed == sorted({*listed}) and len(listed) > 0
