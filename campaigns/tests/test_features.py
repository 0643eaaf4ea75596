"""The campaign on features of cases: it counts what is right, and says what is wrong."""

from dataclasses import replace

import pytest

from campaigns import features
from workbench import Refusal
from workbench.foreign import run as running
from workbench.refusal import Raised


def test_correct_kernels_are_not_called_wrong():
    found = features.measure(cases=2, targets=("flash",), features=("packed", "score_mod"))
    (row,) = found["features"]  # flash takes no score_mod
    assert (row["target"], row["feature"], row["runs"], row["refused"]) == ("flash", "packed", 2, 0)
    assert row.get("exact", 0) + row.get("rounding", 0) == 2
    assert found["wrong"] == []


def test_what_is_wrong_is_said(monkeypatch):
    """A run whose out is twice what it should be, and one that raised."""

    def doubled(target, case, **options):
        trace = running.run(target, case, **options)
        return replace(
            trace, stages=trace.stages | {"out": (2 * trace.stages["out"]).astype(trace.stages["out"].dtype)}
        )

    monkeypatch.setattr(features, "run", doubled)
    found = features.measure(cases=1, targets=("flash",), features=("sinks",), seed=1)
    assert len(found["wrong"]) == 1 and found["wrong"][0].startswith("flash: bug at out on Case(")
    assert found["features"][0]["bug"] == 1

    def raising(target, case, **options):
        raise Raised("mine raised on torch arrays:\nTraceback")

    monkeypatch.setattr(features, "run", raising)
    assert "raised on torch arrays" in features.measure(cases=1, targets=("flash",), features=("sinks",))["wrong"][0]


def test_an_unknown_feature_is_refused():
    with pytest.raises(Refusal, match="^features are sinks, alibi, .*; got 'sink'$"):
        features.measure(features=("sink",))


def test_an_unknown_device_is_refused():
    with pytest.raises(Refusal, match="^device is cpu or cuda; got 'tpu'$"):
        features.measure(device="tpu")
