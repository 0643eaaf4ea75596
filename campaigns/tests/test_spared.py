"""Which tests `make test` spares."""

from campaigns.spared import SPARED, spared


def test_a_test_is_spared_where_another_one_runs_its_lines() -> None:
    ran = {
        "tests/a/test_x.py::test_dear": (3.0, 0.0, {"x.py:1", "x.py:2"}),
        "tests/a/test_x.py::test_next": (2.0, 0.0, {"x.py:1", "x.py:2"}),
        "tests/a/test_x.py::test_third": (1.0, 0.0, {"x.py:1", "x.py:2"}),
        "tests/a/test_x.py::test_alone": (1.0, 0.0, {"x.py:3"}),
        "tests/a/test_x.py::test_cheap": (0.01, 0.0, {"x.py:1"}),
        "tests/a/test_x.py::test_of_a_process": (1.0, 1.0, set()),
        "tests/cuda/test_x.py::test_compiled": (1.0, 0.0, set()),
        "tests/test_x.py::test_the_repository": (1.0, 0.0, set()),
    }
    assert [*spared(ran)] == ["tests/a/test_x.py::test_dear", "tests/a/test_x.py::test_next"]
    kept = [*spared(ran, {"tests/a/test_x.py::test_next"})]
    assert kept == ["tests/a/test_x.py::test_dear", "tests/a/test_x.py::test_third"]


def test_what_is_spared_is_listed_once_and_in_order() -> None:
    listed = SPARED.read_text().splitlines()
    assert listed == sorted({*listed}) and len(listed) > 0
