"""Calls watched in a running process: some of each are copied, judged in float64, and the first wrong one is kept."""
