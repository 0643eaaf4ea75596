"""The two ways in which a request ends before any work is done."""


class Refusal(ValueError):
    """A request that breaks a rule: the message shows the rule, the value, where, and what would be accepted (exit code
    2).
    """


class Raised(Refusal):
    """A function under test that was called as it should be, and raised."""


class Unavailable(RuntimeError):
    """A request that this machine cannot serve, such as a GPU run without a GPU (exit code 3)."""
