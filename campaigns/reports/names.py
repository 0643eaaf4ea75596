"""Causes that were named, and whether each says what is wrong: decided by reading it beside the truth of its report."""

from collections.abc import Mapping

#: kernel -> the sentence of a cause -> whether it is so, on every input
READ: Mapping[str, Mapping[str, bool]] = {}
