"""From a failing case to the smallest one that fails in the same way."""
