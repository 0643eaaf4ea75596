"""The builds of random cases: one of each dtype, since each is seconds of compiling for every kernel function."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from campaigns import verdicts
from workbench import Case
from workbench.cuda.kernels import KERNELS
from workbench.explore import ranges
from workbench.explore.draw import Among
from workbench.explore.ranges import BUILDS
from workbench.explore.sample import sample

FEW_BUILDS = BUILDS[0], BUILDS[1], BUILDS[4]
assert {build.dtype for build in FEW_BUILDS} == {build.dtype for build in BUILDS}
#: of a random case of a kernel: what leaves one build of it. On tensor cores most of a case are switches of the build
ONE_BUILD: Mapping[str, Any] = {"dtype": FEW_BUILDS[0].dtype}
ONE_ON_TENSOR_CORES: Mapping[str, Any] = {
    **{"dtype": FEW_BUILDS[2].dtype, "head_dim": 40, "causal": True},
    "scale": Among((None, 1.0, 0.125, 0.3)),
}


def draw_few_builds(patch: pytest.MonkeyPatch) -> None:
    """Have random cases drawn on FEW_BUILDS, all in windows, which may be as wide as the keys, and without softcap:
    either is another build of each.
    """
    patch.setattr(ranges, "BUILDS", FEW_BUILDS)
    patch.setattr(ranges, "RANGES", {**ranges.RANGES, "softcap": Among((None,)), "windowed": Among((True,))})


def draw_one_build(patch: pytest.MonkeyPatch) -> None:
    """Have the random cases of the campaign on correct kernels drawn on one build of each."""

    def one(random: np.random.Generator, kernel: str) -> Case:
        return sample(random, kernel, **(ONE_BUILD if "float32" in KERNELS[kernel].dtypes else ONE_ON_TENSOR_CORES))

    draw_few_builds(patch)
    patch.setattr(verdicts, "sample", one)
