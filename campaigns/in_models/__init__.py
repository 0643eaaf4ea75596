"""Tiny models of transformers, right and wrong attention functions in them, pairs of runs, and the truth of each.

`models` makes models and runs them, `right` has right functions and attention in float64, `bugs` the wrong functions,
`pairs` the pairs of runs; `python -m campaigns.in_models.check` measures them all, as measured.txt has it.
"""
