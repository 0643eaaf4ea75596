"""A reference in plain code as a graph: values, budgets and causes of any function that runs on arrays.

`trace` runs the function once, on arrays that record (`arrays`, `functions`, `numpy_module`; for tensors `torch_run`,
whose dispatcher `torch_mode` answers with the same arrays), and gives a `Graph` of primitives, without values. Passes
go over the graph: they compute values anew from the inputs, free what nobody reads any more, and take arrays of NumPy
or torch. `budgets` goes forward, with dumps in the place of stages; `budget_at` in reverse, for single elements;
`sources` says which lines an element's budget comes from, `undecided` where the run went on with a value that a kernel
may have otherwise. `rules` has one rule for each primitive: value, own roundings, how errors of operands move it,
adjoint, words.

>>> import numpy as np
>>> from workbench.reference.graph import Contract, budgets, trace
>>> def softmax(x):
...     weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
...     return weights / np.sum(weights, axis=-1, keepdims=True)
>>> graph = trace(softmax, {"x": np.arange(4, dtype=np.float32)})
>>> expected = budgets(graph, Contract())
>>> sorted(expected)
['result', 'weights']
>>> bool(np.all(expected["weights"].budget.bound <= 1e-6))
True
"""

from workbench.reference.graph.contract import Contract as Contract
from workbench.reference.graph.contract import parse as parse
from workbench.reference.graph.decisions import Undecided as Undecided
from workbench.reference.graph.decisions import undecided as undecided
from workbench.reference.graph.expected import Expected as Expected
from workbench.reference.graph.expected import budgets as budgets
from workbench.reference.graph.gradients import Gradients as Gradients
from workbench.reference.graph.node import Graph as Graph
from workbench.reference.graph.recording import applied as applied
from workbench.reference.graph.recording import may_lose as may_lose
from workbench.reference.graph.recording import stage as stage
from workbench.reference.graph.reverse import Source as Source
from workbench.reference.graph.reverse import budget_at as budget_at
from workbench.reference.graph.reverse import sources as sources
from workbench.reference.graph.tracing import trace as trace
