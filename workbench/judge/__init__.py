"""Right or wrong, and why."""
