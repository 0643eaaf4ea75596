"""All operations by name."""

from collections.abc import Mapping

from workbench.operations.attention_backward import ATTENTION_BACKWARD
from workbench.operations.gated_delta_rule import GATED_DELTA_RULE
from workbench.operations.operation import Operation
from workbench.operations.rmsnorm import RMSNORM
from workbench.operations.rope import ROPE

OPERATIONS: Mapping[str, Operation] = {one.name: one for one in (RMSNORM, GATED_DELTA_RULE, ATTENTION_BACKWARD, ROPE)}
