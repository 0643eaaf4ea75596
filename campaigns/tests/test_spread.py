"""Work spread over processes."""

import os
import pickle

from campaigns.spread import spread
from campaigns.tally import Called
from workbench import Case


def test_results_come_in_order_from_one_process_or_two():
    items = list(range(-20, 20))
    assert list(spread(abs, items, 1)) == list(spread(abs, items, 2)) == [abs(item) for item in items]


def test_processes_leave_each_other_the_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert list(spread(os.getenv, ["OMP_NUM_THREADS"], 1)) == ["7"]
    assert list(spread(os.getenv, ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"], 2)) == ["1", "1"]


def test_what_campaigns_send_can_cross():
    for sent in (Case(seqlen=20, causal=True, splits=2), Called("bug", (("bug", "acc"),), ("atol 1e-2",), "flash")):
        assert pickle.loads(pickle.dumps(sent)) == sent
