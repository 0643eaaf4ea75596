"""Where an attention kernel rounds: which casts happen, one at a time."""

from workbench import Case
from workbench.case.contract import of_foreign
from workbench.reference.arithmetic import FLOAT32
from workbench.reference.sites import Sites, sites_of

NARROW = of_foreign(
    {"probs_dtype": "bfloat16", "out_dtype": "float16", "scores_dtype": "float32", "partials_dtype": "float32"},
    Case(seqlen=32, head_dim=16, dtype="float16"),
)


def test_each_cast_that_happens_alone() -> None:
    sites = sites_of(NARROW)
    found = dict(sites.casts())
    assert [*found] == ["the cast of probs to bfloat16", "the rounding of out to float16"]
    for one, cast in zip(found.values(), ("probs", "out"), strict=True):
        assert one == Sites(qk=sites.qk, acc=sites.acc, **{cast: getattr(sites, cast)})
        assert not getattr(one, cast).wide


def test_sums_are_kept_where_nothing_is_cast() -> None:
    sites = sites_of(NARROW)
    assert sites.sums == Sites(qk=sites.qk, acc=sites.acc) and sites.acc.accumulation != FLOAT32.accumulation
    assert sites.probs.dtype == "bfloat16" and [*sites.sums.casts()] == []
