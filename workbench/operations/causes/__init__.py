"""Causes of what is wrong in a run of an operation: edits of its table that give the wrong numbers, and give them again
in fresh runs.
"""
