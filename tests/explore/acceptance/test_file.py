"""What a spec says, and what is refused."""

import numpy as np
import pytest

from workbench import Refusal
from workbench.explore.acceptance.families import families_of
from workbench.explore.acceptance.file import of_plain, read
from workbench.explore.acceptance.spec import Spec
from workbench.explore.draw import Among, Between

TEXT = """
operation = "attention"
arrays = "torch"
contract = "triton"
batch_invariant = true
without = ["cold"]

[case]
dtype = ["float16", "bfloat16"]
seqlen_k = {from = 1, to = 1000}
softcap = ["none", 30.0]
window = [[16, 0]]

[[shapes]]
seqlen_q = 1
seqlen_k = 777
"""


def test_a_file_says_what_is_drawn(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(TEXT)
    spec = read(path)
    assert spec.case == {
        "dtype": Among(("float16", "bfloat16")), "seqlen_k": Between(1, 1000),
        "softcap": Among((None, 30.0)), "window": Among(((16, 0),)),
    }  # fmt: skip
    assert spec.shapes == ({"seqlen_q": 1, "seqlen_k": 777},) and spec.largest("seqlen_k") == 1000
    due = families_of(spec)
    assert {"bend", "listed", "beside"} <= {*due} and not {"cold", "lengths"} & {*due}
    random = np.random.default_rng(0)
    cases = [spec.draw(random) for _ in range(20)]
    assert {case.dtype for case in cases} == {"float16", "bfloat16"} and {case.softcap for case in cases} == {None, 30}
    assert all(case.window == (16, 0) for case in cases if case.causal)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"operation": "rmsnorm"}, "operation must be attention"),
        ({"lsee": True}, "a spec has no 'lsee'; did you mean lse\\? Use one of operation, case"),
        ({"lse": 1}, "must be of type bool"),
        ({"case": {"seqlen": {"from": 9, "to": 3}}}, "seqlen needs from <= to; got {from = 9, to = 3}"),
        ({"case": {"seqlen": {"from": 9}}}, "a range of seqlen"),
        ({"case": {"seqlenk": 3}}, "no field 'seqlenk'; did you mean seqlen_k\\? Use one of "),
        ({"case": {"dtype": []}}, "must have a value"),
        ({"case": {"dtype": "float15"}}, "dtype"),
        ({"case": {"causal": True, "seqlen_q": 9, "seqlen_k": 3}}, "empty_rows"),
        ({"without": ["hott"]}, "no family 'hott'; did you mean hot"),
    ],
)
def test_what_is_no_spec_is_refused(given, words):
    with pytest.raises(Refusal, match=words):
        of_plain(given, "spec")


def test_rows_that_see_no_key_come_where_they_are_asked_for():
    random = np.random.default_rng(0)
    usual, asked = Spec(case={"causal": True}), Spec(case={"causal": True}, empty_rows=True)
    assert all(case.seqlen_q <= case.seqlen_k for case in (usual.draw(random) for _ in range(20)))
    assert any(case.seqlen_q > case.seqlen_k for case in (asked.draw(random) for _ in range(20)))
