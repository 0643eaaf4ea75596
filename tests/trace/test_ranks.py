"""What ranks leave is judged as one run: right in every order, a wrong rank is named, what is not of one run is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from campaigns.merges.correct import Array, by_division, by_lse
from campaigns.merges.faulty import takes_natural_for_base2
from workbench import Case, Refusal, diff, load
from workbench.case.ranks import dealt, indices
from workbench.report.ranks import whose
from workbench.report.text import in_full
from workbench.trace.join import load_all
from workbench.trace.ranks import save_rank

CASE = Case(heads=2, kv_heads=1, seqlen=48, head_dim=16, causal=True)
RANKS = 3


def part(q: Array, k: Array, v: Array, visible: Array, scale: float, empty: float = -np.inf) -> tuple[Array, Array]:
    """out and lse of some queries on the keys of a rank."""
    x = np.where(visible, q.astype(np.float32) @ k.astype(np.float32).swapaxes(2, 3) * np.float32(scale), -np.inf)
    top = np.maximum(x.max(-1), -1e30)
    p = np.exp(x - top[..., None])
    total = p.sum(-1)
    out = p @ v.astype(np.float32) / np.where(total == 0, 1, total)[..., None]
    return out, np.where(total == 0, empty, top + np.log(np.where(total == 0, 1, total))).astype(np.float32)


def leave(folder: Path, case: Case = CASE, *, order: str = "contiguous", wrong: Any = None, **more: Any) -> None:
    """What RANKS ranks leave; `wrong`: rank -> its merge, or (rank, source) whose keys stand in place of source's."""
    queries, keys = ([indices(x) for x in dealt(n, RANKS, order)] for n in (case.seqlen_q, case.seqlen_k))
    q, k, v = case.inputs()
    wrong = wrong or {}
    for rank in range(RANKS):
        outs, lses, own = [], [], q[:, :, queries[rank]]
        for source in range(RANKS):
            at = keys[wrong.get((rank, source), source)]
            seen = case.mask()[queries[rank]][:, keys[source]]
            if not seen.any():  # a causal ring leaves these out
                outs.append(None), lses.append(None)
                continue
            made = part(own, k[:, :, at], v[:, :, at], seen, case.scale)
            outs.append(made[0]), lses.append(made[1])
        whole = [np.zeros((*own.shape[:3], v.shape[3]), np.float32) if x is None else x for x in outs]
        none = [np.full(own.shape[:3], -np.inf, np.float32) if x is None else x for x in lses]
        results = wrong.get(rank, by_division)(np.stack(whole), np.stack(none))
        inputs = {"q": own, "k": k[:, :, keys[rank]], "v": v[:, :, keys[rank]]}
        results = {**results, "out": results["out"].astype(case.dtype if case.dtype != "bfloat16" else own.dtype)}
        save_rank(folder, case, rank, RANKS, inputs=inputs, outs=outs, lses=lses, results=results, order=order, **more)


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_ranks_are_right(tmp_path: Path, order: str, dtype: str) -> None:
    leave(tmp_path, CASE.but(dtype=dtype), order=order)
    found = diff(load(tmp_path))
    assert found.verdict == "rounding" and len(found.stages) == 8
    assert found["partial_max"].judged.actual.shape == (1, 2, RANKS, 48)


def test_lengths_that_ranks_do_not_divide(tmp_path: Path) -> None:
    leave(tmp_path, CASE.but(seqlen_q=29, seqlen_k=41, window=(9, 0)), order="zigzag")
    found = diff(load(tmp_path))
    assert found.verdict == "rounding" and found.trace.case.seqlen_k == 41


def test_the_rank_whose_merge_is_wrong_is_named_with_its_cause(tmp_path: Path) -> None:
    leave(tmp_path, wrong={1: takes_natural_for_base2})
    found = diff(load_all(str(tmp_path)))
    assert (found.verdict, found.origin) == ("bug", "merge_weight")
    assert {*np.flatnonzero(found["merge_weight"].profile("q").outside)} <= {*range(16, 32)}
    assert ["base-e lse of each rank is read as base 2" in one.text for one in found.explain().causes] == [True]
    text = in_full(found)
    assert "wrong at the queries of rank 1 (" in text and "the base-e lse of each rank is read as base 2" in text
    assert "keys of rank " in text and "of rank 1: actual" in text


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_the_rank_that_reads_other_keys_than_their_owner_has_is_named(tmp_path: Path, order: str) -> None:
    leave(tmp_path, order=order, wrong={(2, 1): 0})
    found = diff(load(tmp_path))
    assert (found.verdict, found.origin) == ("bug", "partial_sum")
    (line,) = whose(found.trace, found["partial_sum"])
    assert "wrong at the queries of rank 2 (" in line and "and at the keys of rank 1 (" in line


def test_a_merge_by_lse_in_ranks(tmp_path: Path) -> None:
    leave(tmp_path, wrong=dict.fromkeys(range(RANKS), by_lse))
    found = diff(load(tmp_path))
    assert found.verdict == "rounding" and found.trace.contract.normalisation == "lse"


def changed(folder: Path, of: int, **fields: Any) -> None:
    """The file of a rank with other fields of its manifest."""
    path = folder / f"rank{of}.safetensors"
    with safe_open(path, framework="numpy") as file:
        manifest = json.loads(file.metadata()["workbench"]) | fields
    save_file(load_file(path), path, {"workbench": json.dumps(manifest)})


def test_what_is_not_of_one_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="no .safetensors file there"):
        load(tmp_path)
    leave(tmp_path)
    changed(tmp_path, 2, order="zigzag")
    with pytest.raises(Refusal, match="rank0.safetensors and .*rank2.safetensors are not of one run: order differs"):
        load(tmp_path)
    (tmp_path / "rank2.safetensors").unlink()
    with pytest.raises(Refusal, match="^no file of rank 2 of 3 next to "):
        load_all(str(tmp_path))
    changed(tmp_path, 1, schema="workbench.rank/9")
    with pytest.raises(Refusal, match="not a file of a rank: .* schema 'workbench.rank/1'; got 'workbench.rank/9'"):
        load(tmp_path)
    right = {"schema": "workbench.rank/1", "rank": 1, "ranks": RANKS, "results": [], "case": CASE.as_dict()}
    for wrong, message in (
        ({"rank": "1"}, "the manifest's 'rank' must be a whole number of at least 0; got \"1\""),
        ({"ranks": 0}, "the manifest's 'ranks' must be a whole number of at least 1; got 0"),
        ({"results": [["out"]]}, "the manifest's 'results' must be a list of some of merge_max, .*; got .*\"out\""),
        ({"case": {"seqlens": 4}}, "the case has unknown fields seqlens; its fields are "),
        ({"case": {"heads": "two"}}, "heads must be a whole number of at least 1; got 'two'"),
    ):
        changed(tmp_path, 1, **{**right, **wrong})
        with pytest.raises(Refusal, match=f"rank1.safetensors: not a file of a rank: {message}"):
            load(tmp_path)


def test_what_does_not_fit_the_case_is_refused(tmp_path: Path) -> None:
    q, k, v = (x[:, :, :16] for x in CASE.inputs())
    outs, lses = [np.zeros((1, 2, 16, 16), np.float32)] * 3, [np.zeros((1, 2, 16), np.float32)] * 3
    right: dict[str, Any] = {
        "inputs": {"q": q, "k": k, "v": v},
        "outs": outs,
        "lses": lses,
        "results": {"out": outs[0]},
    }
    for changes, message in (
        ({"outs": outs[:2]}, "rank 0: outs must have one entry for each of 3 ranks; got 2"),
        ({"lses": [lses[0], lses[0], lses[0][..., :9]]}, r"rank 0: lses\[2\] must have shape \[1, 2, 16\]"),
        (
            {"results": {"scores": q}},
            "rank 0: results must be merge_max, merge_weight, merge_sum, out, lse; got scores",
        ),
        ({"inputs": {"q": q, "k": k}}, r"rank 0: v must have shape \[1, 1, 16, 16\] for this case; got none"),
        ({"order": "ring"}, "order must be one of"),
    ):
        with pytest.raises(Refusal, match=message):
            save_rank(tmp_path, CASE, 0, 3, **{**right, **changes})
    with pytest.raises(Refusal, match="rank must be 0 to 2 of 3 ranks; got 3"):
        save_rank(tmp_path, CASE, 3, 3, **right)
    assert not [*tmp_path.iterdir()]
