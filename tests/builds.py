"""The builds of random cases: one of each dtype, since each is seconds of compiling for every kernel function."""

from workbench.bench.verdicts import BUILDS

FEW_BUILDS = BUILDS[0], BUILDS[1], BUILDS[3]
assert {build[-1] for build in FEW_BUILDS} == {build[-1] for build in BUILDS}
