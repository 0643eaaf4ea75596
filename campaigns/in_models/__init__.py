"""Tiny random models of transformers, right and wrong attention functions in them, and pairs of runs, with the truth of each."""
