"""Tiny models of transformers, right and wrong attention functions in them, pairs of runs, and the truth of each."""
