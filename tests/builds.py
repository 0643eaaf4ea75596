"""The builds of random cases: one of each dtype, since each is seconds of compiling for every kernel function."""

from workbench.explore.ranges import BUILDS

FEW_BUILDS = BUILDS[0], BUILDS[1], BUILDS[4]
assert {build.dtype for build in FEW_BUILDS} == {build.dtype for build in BUILDS}
