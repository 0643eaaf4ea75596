"""What assertions on attention go by at the moment: a test's marker, options of pytest, else what is usual."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.judge.fails import USUAL

if TYPE_CHECKING:
    from workbench.testing.examples import Failed


@dataclass(frozen=True)
class Settings:
    """What an assertion does where its call does not say."""

    fail_on: str = USUAL  #: the mildest verdict that fails, of `judge.fails.FAIL_ON`
    backend: str | None = None  #: of kernels of ours; None: the one of `workbench.run`
    shrink_effort: float = 0.3  #: of the search for the smallest failing case, as of `shrink`; 0: there is none
    node: str = ""  #: pytest's id of the test that runs; empty outside of pytest
    #: to which every check adds its largest x of budget, None where nothing was judged; None outside of pytest
    checked: list[float | None] | None = None
    #: the failures among the examples of a test of hypothesis that show most; None outside of pytest
    failed: "Failed | None" = None


#: those of the test that runs; the plugin sets it around each one
current: ContextVar[Settings] = ContextVar("attention_settings", default=Settings())  # noqa: B039 - it is frozen
