"""A verdict on a function by what it must do, not by one case: it may be lazy, or hostile."""
