"""Settings profiles of hypothesis for tests of kernels, as data.

No profile has a deadline: the first example of a case that was not seen before compiles a kernel, which takes seconds,
and the second one takes milliseconds, which hypothesis would call flaky.

>>> PROFILES["ci"]["derandomize"], PROFILES["ci"]["max_examples"]
(True, 100)
"""

from collections.abc import Mapping
from typing import Any

from workbench.extras import needed

#: name -> fields of hypothesis.settings. What is said here is said in every profile that it matters to: a profile takes
#: what it leaves out from the one that is loaded, which where CI is set is hypothesis' own "ci", with derandomize
PROFILES: Mapping[str, Mapping[str, Any]] = {
    # of a test that runs on every save: seconds on small cases; other examples each time, and failing ones kept
    "dev": {"deadline": None, "max_examples": 50, "derandomize": False},
    # of a gate: the same examples for the same code, so that nobody's change fails for another's luck; nothing is kept
    # on a machine that is thrown away, and the blob repeats a failure elsewhere
    "ci": {"deadline": None, "max_examples": 100, "derandomize": True, "database": None, "print_blob": True},
    # of a search: `hypothesis.target` begins to tell from some 1000 examples on (hypothesis, target)
    "nightly": {"deadline": None, "max_examples": 2000, "derandomize": False, "print_blob": True},
    # of a GPU that others wait for: an example costs a launch, and often a compilation, for each new shape
    "gpu": {"deadline": None, "max_examples": 20, "derandomize": False, "print_blob": True},
}


def load(name: str) -> None:
    """Register a profile as attention-<name>, and load it; Unavailable without hypothesis."""
    with needed(f"the profile {name} needs", "hypothesis"):
        from hypothesis import settings

    settings.register_profile(f"attention-{name}", **PROFILES[name])
    settings.load_profile(f"attention-{name}")
