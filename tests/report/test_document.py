"""docs/reference/json.md names every field of a judgement's document."""

import json
import re
from pathlib import Path
from typing import Any

from docs.generators import filled
from tests.refusals import invoked

PAGE = filled(Path(__file__).parent.parent.parent.joinpath("docs/reference/json.md").read_text())
NAMED = {*re.findall(r"`\"?([\w.<=>]+)\"?`", PAGE)}
#: fields whose keys are values: names of stages, options, contracts
OPEN = ("case", "contract", "bits_lost", "budget_terms", "bins", "versions", "worst", "where", "quantisation")
SMALL = ("--seqlen", "20", "--head-dim", "8", "--block-q", "16", "--block-k", "16", "--backend", "emulator", "--json")


def keys(document: Any) -> set[str]:
    if isinstance(document, list):
        return {key for one in document for key in keys(one)}
    if not isinstance(document, dict):
        return set()
    return {*document} | {key for name, one in document.items() if name not in OPEN for key in keys(one)}


def test_every_field_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def attention(q, k, v, *, scale, causal):\n    return {'out': 0 * q, 'qk': 0 * q @ v}\n"
    )
    ours = json.loads(invoked("diff", "split_k", "--fault", "reduce-double-counts-sum", *SMALL).stdout)
    foreign = json.loads(invoked("diff", f"{tmp_path}/mine.py:attention", "--seqlen", "64", "--json").stdout)
    assert ours["schema"] == foreign["schema"] == "workbench.diff/1"
    found = keys(ours) | keys(foreign)
    assert {"over_budget", "sha256", "assumed"} <= found | {*ours["contract"]} and not found - NAMED
    assert {name for name in OPEN if name in ours} <= NAMED
    assert [*next(stage["isolated"]["bins"] for stage in ours["stages"])][0] in NAMED


def test_one_run_and_several(capsys: Any) -> None:
    several = json.loads(invoked("diff", "flash", *SMALL, "--seed", "0,1").stdout)
    one = json.loads(invoked("diff", "flash", *SMALL, "--seed", "1").stdout)
    assert several == {"schema": "workbench.diffs/1", "runs": [several["runs"][0], one]}
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for document, lines in ((one, 1), (several, 2)):
        exec(example, {"stdout": json.dumps(document), "json": json})
        assert capsys.readouterr().out == lines * "flash 20 rounding None\n"
