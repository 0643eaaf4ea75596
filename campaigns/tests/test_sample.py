"""The part of these tests that `--sample` draws."""

from campaigns.tests.conftest import drawn

NAMES = [f"test_{i}" for i in range(50)]


def test_a_part_is_the_same_in_any_order_and_another_with_another_seed():
    part = drawn(NAMES, 20, 0)
    assert len(part) == 10 and part == drawn(NAMES[::-1], 20, 0) != drawn(NAMES, 20, 1)


def test_one_at_least_is_drawn_and_all_of_them_are_all():
    assert len(drawn(NAMES, 0.1, 0)) == 1 and drawn(NAMES, 100, 0) == {*NAMES} and drawn([], 20, 0) == set()
