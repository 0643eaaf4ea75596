"""Causes of a wrong kernel: edits of its reference's graph that make the kernel's numbers.

An edit changes what nodes compute, such as a sum without its last term (`edit`). `library` yields the edits of a graph,
the likeliest first; `replay` computes what an edit makes of the stages; `search` keeps the edits that reproduce the
kernel, on its inputs within the budgets of the edited graph, and then on fresh ones.
"""
