"""The library against itself: every hypothesis can be put into a kernel, and says in words what it is."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.judge.explain.fields import traced
from tests.judge.explain.kernels import attention
from workbench import Case, run
from workbench.expectation.observed import Observed
from workbench.judge.explain.coded import Coded
from workbench.judge.explain.counter_cases import CounterCase, classes
from workbench.judge.explain.library import FAMILIES, OF_FIELDS, family, library
from workbench.judge.explain.library.indices import Indexing, taken
from workbench.judge.explain.scene import Scene

TINY = Case(heads=2, kv_heads=1, seqlen_q=5, seqlen_k=20, head_dim=4, causal=True, scale=0.3)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene.of(Observed(run(attention(), TINY)))


def test_ids_are_unique_and_name_their_family() -> None:
    every = library()
    assert len(every) > 5000 and len({one.id for one in every}) == len(every)
    assert all(one.text and one.edits and one.family in FAMILIES for one in every)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("merge", "codes", *OF_FIELDS)])
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


#: family -> a case that has what it is about, and the share of its hypotheses that changes something there
FIELDS = {
    "sinks": (TINY.but(sinks="normal"), 0.5),
    "alibi": (TINY.but(alibi_slopes=(0.3, 0.2), softcap=2.0), 0.7),
    "bias": (TINY.but(batch=3, causal=True, window=(9, 0)), 0.9),
    "sequences": (Case(heads=2, seqlens_q=(5, 3, 4), seqlens_k=(12, 20, 17), head_dim=4, causal=True), 0.9),
    "pages": (Case(heads=2, seqlens_q=(5, 3, 4), seqlens_k=(12, 20, 17), head_dim=4, page_size=4), 0.9),
    "dropout": (TINY.but(batch=3, dropout_p=0.3), 0.7),
    "mods": (TINY.but(score_mod=lambda score, b, h, q_idx, kv_idx: score**2 - kv_idx), 0.6),
    "latent": (TINY.but(head_dim=12, head_dim_v=8, shared_kv=True), 0.6),
    "packing": (TINY.but(pack_gqa=True), 0.8),
}


@pytest.mark.parametrize("name", OF_FIELDS)
def test_hypotheses_of_a_field_predict_each_stage_where_a_case_has_it_and_vanish_elsewhere(
    scene: Scene, name: str
) -> None:
    case, share = FIELDS[name]
    changing = set()
    for inputs in _given(case) if name == "bias" else [None]:
        own = Scene.of(Observed(traced(case, {}, False, inputs, {})))
        assert name in own.families and name not in scene.families
        with np.errstate(all="ignore"):
            for one in family(name):
                found = own.predicted(one, own.touched(one))
                if found is None:
                    continue
                assert all(x.shape == own.expected[stage].shape for stage, x in found.items()), one.id
                if any(not np.array_equal(x, own.expected[s], equal_nan=True) for s, x in found.items()):
                    changing.add(one.id)
    assert len(changing) >= share * len(family(name)) > 0


def _given(case: Case) -> Iterator[dict[str, np.ndarray]]:
    """Inputs with a bias and a mask: with holes, with padding at either end, and within, in a causal window."""
    rng, keys = np.random.default_rng(0), np.arange(20)
    before = np.arange(5)[:, None] + 15 - keys
    plain = dict(zip("qkv", case.inputs(), strict=True))
    plain["bias"] = rng.standard_normal((3, 2, 5, 20)).astype(np.float32)
    yield plain | {"mask": rng.random((3, 2, 5, 20)) < 0.8}
    for seen in (keys >= 4, keys < 15, keys % 7 > 0):
        of_batches = np.stack([seen, np.ones(20, bool), seen])[:, None, None]
        yield plain | {"mask": np.broadcast_to(of_batches, (3, 2, 5, 20)).copy()}
    yield plain | {"mask": np.broadcast_to((before >= 0) & (before < 9), (3, 2, 5, 20)).copy()}


def test_what_a_map_reads_at_no_place_is_0() -> None:
    before = Indexing("before", "the one before, and nothing at the start", lambda i, n: i - 1)
    x = np.array([[3.0, 5.0, 7.0], [2.0, 4.0, 6.0]])
    for axis in (1, -1):
        assert taken(x, before, axis).tolist() == [[0.0, 3.0, 5.0], [0.0, 2.0, 4.0]]
    assert taken(x, before, 0).tolist() == [[0.0, 0.0, 0.0], [3.0, 5.0, 7.0]]


def test_hypotheses_of_codes_and_merges_predict_too() -> None:
    codes = Case(heads=2, kv_heads=1, seqlen_q=5, seqlen_k=20, head_dim=4, codes="e4m3")
    q, k, v = codes.inputs()

    def quantised(q, k, v, *, scale_q, scale_k, scale_v, scale, causal):
        decoded = {f"dequant_{x}": rows.astype(np.float32) for x, rows in (("q", q), ("k", k), ("v", v))}
        return {**decoded, "out": np.zeros(q.shape, np.float32)}

    coded = Coded.of(Observed(run(quantised, codes)))
    with np.errstate(all="ignore"):
        every = family("codes")
        of_another = [one for one in every if "-for-" in one.id]  # whose rows may be more or fewer
        for one in [*every[::7], *of_another]:
            touched = coded.touched(one)
            found = coded.predicted(one, touched)
            assert found is None or {*found} == {*touched}, one.id
            assert found is None or all(x.shape == coded.expected[stage].shape for stage, x in found.items()), one.id


def test_classes_are_what_no_case_tells_apart(scene: Scene) -> None:
    from workbench.judge.explain.counter_cases import cases

    every = {one.id: one for one in library()}
    names = ("softmax.correction-missing-in-acc", "factor.correction-in-acc-missing", "softmax.correction-twice-in-acc")
    where = [CounterCase(scene, case) for case in cases(scene.trace.case)]
    found = classes([every[name] for name in names], where, ["acc"])
    assert [[one.id for one in group] for group in found] == [[*names[:2]], [names[2]]]
    scales = [every["scale.twice"], every["scale.of-dim"]]
    assert len(classes(scales, where, ["scores"])) == 2


@pytest.mark.parametrize("block", [None, 1, 4, 16, 256, 4096])
def test_imagined_cases_are_cases_whatever_the_tiles(block: int | None) -> None:
    from workbench.judge.explain.counter_cases import cases

    found = [*cases(TINY.but(block_k=block, splits=2))]
    assert len(found) == len({*found}) == 8 and TINY not in found
    assert all(one.head_dim == TINY.head_dim and one.block_k == block for one in found)


def test_imagined_cases_have_the_fields_of_each_head_and_sequence() -> None:
    from workbench.judge.explain.counter_cases import cases

    case = Case(
        heads=2, seqlens_q=(5, 0, 4), seqlens_k=(12, 20, 17), head_dim=4, sinks=(0.5, 1.0), alibi_slopes=(0.3, 0.2)
    )
    found = [*cases(case)]
    assert len({*found}) == len(found) == 5
    for one in found:
        assert len(one.seqlens_k) == len(one.seqlens_q) == one.batch == 3 and len({*one.seqlens_k}) == 3
        assert max(one.seqlens_q) == one.seqlen_q and one.seqlens_q[1] == 0
        assert len({*one.sinks}) == len({*one.alibi_slopes}) == one.heads
