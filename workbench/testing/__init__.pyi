"""The public names, which `workbench/testing/__init__.py` takes from here."""

from workbench.explore.strategies import awkward_values as awkward_values
from workbench.explore.strategies import cases as cases
from workbench.explore.strategies import tensors as tensors
from workbench.testing.arrays import assert_attention_close as assert_attention_close
from workbench.testing.attention import AttentionError as AttentionError
from workbench.testing.attention import AttentionWarning as AttentionWarning
from workbench.testing.attention import assert_attention as assert_attention
from workbench.testing.gradients import GradientWarning as GradientWarning
from workbench.testing.operation import assert_operation as assert_operation
from workbench.testing.profiles import PROFILES as PROFILES
from workbench.testing.reference import assert_close as assert_close
