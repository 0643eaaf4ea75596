"""The profiles are settings of hypothesis, and mean the same whatever is loaded before."""

import pytest
from hypothesis import settings

from workbench.testing import PROFILES
from workbench.testing.profiles import load


@pytest.fixture(autouse=True)
def as_before():
    before = settings.get_current_profile_name()
    yield
    settings.load_profile(before)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_loaded_by_its_own_name(name):
    load(name)
    assert settings.get_current_profile_name() == f"attention-{name}"
    said = {field: getattr(settings(), field) for field in PROFILES[name]}
    assert said == PROFILES[name] and settings().deadline is None


def test_a_search_is_random_where_a_gate_was_loaded_before():
    """Where CI is set hypothesis loads a profile that repeats the same examples, which a profile begins from."""
    load("ci")
    assert settings().derandomize
    for name in ("dev", "nightly", "gpu"):
        load("ci")
        load(name)
        assert not settings().derandomize, name
