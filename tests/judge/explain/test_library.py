"""The library against itself: every hypothesis can be put into a kernel, and says in words what it is."""

import numpy as np
import pytest

from tests.judge.explain.kernels import attention
from workbench import Case, run
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.imagine import Imagined, classes
from workbench.judge.explain.library import FAMILIES, family, library
from workbench.judge.explain.scene import Scene

TINY = Case(heads=2, kv_heads=1, seqlen_q=5, seqlen_k=20, head_dim=4, causal=True, scale=0.3)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene.of(run(attention(), TINY))


def test_ids_are_unique_and_name_their_family() -> None:
    every = library()
    assert len(every) > 5000 and len({one.id for one in every}) == len(every)
    assert all(one.text and one.edits and one.family in FAMILIES for one in every)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("merge", "codes")])
def test_every_hypothesis_predicts_each_stage_that_it_touches(scene: Scene, name: str) -> None:
    changing = 0
    with np.errstate(all="ignore"):
        for one in family(name):
            touched = scene.touched(one)
            found = scene.predicted(one, touched)
            if found is None:
                continue  # of stages that this kernel lacks
            assert {*found} == {*touched}, one.id
            for stage, x in found.items():
                assert x.shape == scene.expected[stage].shape, one.id
                changing += not np.array_equal(x, scene.expected[stage], equal_nan=True)
    assert changing > 0.3 * len(family(name))


def test_hypotheses_of_codes_and_merges_predict_too() -> None:
    codes = Case(heads=2, kv_heads=1, seqlen_q=5, seqlen_k=20, head_dim=4, codes="e4m3")
    q, k, v = codes.inputs()

    def quantised(q, k, v, *, scale_q, scale_k, scale_v, scale, causal):
        return {"out": np.zeros(q.shape, np.float32)}

    coded = Coded.of(run(quantised, codes))
    with np.errstate(all="ignore"):
        for one in family("codes")[::7]:
            touched = coded.touched(one)
            found = coded.predicted(one, touched)
            assert found is None or {*found} == {*touched}, one.id


def test_classes_are_what_no_case_tells_apart(scene: Scene) -> None:
    from workbench.judge.explain.imagine import cases

    every = {one.id: one for one in library()}
    names = ("softmax.correction-missing-in-acc", "factor.correction-in-acc-missing", "softmax.correction-twice-in-acc")
    where = [Imagined(scene, case) for case in cases(scene.trace.case)]
    found = classes([every[name] for name in names], where, ["acc"])
    assert [[one.id for one in group] for group in found] == [[*names[:2]], [names[2]]]
    scales = [every["scale.twice"], every["scale.of-dim"]]
    assert len(classes(scales, where, ["scores"])) == 2


@pytest.mark.parametrize("block", [None, 1, 4, 16, 256, 4096])
def test_imagined_cases_are_cases_whatever_the_tiles(block: int | None) -> None:
    from workbench.judge.explain.imagine import cases

    found = [*cases(TINY.but(block_k=block, splits=2))]
    assert len(found) == len({*found}) == 6 and TINY not in found
    assert all(one.head_dim == TINY.head_dim and one.block_k == block for one in found)
