"""Edits of loops over tiles: what they compute, by the graph that has them."""

from typing import Any

import numpy as np
import pytest
import torch

from workbench.judge.reference.causes.edit import edited
from workbench.judge.reference.causes.known import unfolded
from workbench.judge.reference.causes.library import edits
from workbench.judge.reference.causes.search import MAKE_NAN
from workbench.judge.reference.causes.tile_masks import in_whole_tiles
from workbench.reference.graph import Contract, Graph, budgets, trace
from workbench.reference.graph.plan import upstream

ROWS, KEYS, HEADS = 20, 40, 4
rng = np.random.default_rng(0)
INPUTS = {"q": rng.standard_normal((HEADS, ROWS, 8)), "k": rng.standard_normal((HEADS // 2, KEYS, 8)),
          "v": rng.standard_normal((HEADS // 2, KEYS, 12)), "lse": rng.standard_normal((HEADS, ROWS))}  # fmt: skip


def attend(q, k, v, lse):
    keys, values = np.repeat(k, 2, axis=0), np.repeat(v, 2, axis=0)
    scores = q @ np.swapaxes(keys, -1, -2)
    mask = np.tri(20, 40, 20, dtype=bool)
    probs = np.exp(np.where(mask, scores - lse[..., None], -np.inf))
    out = probs @ values
    added = np.swapaxes(probs, -1, -2) @ q
    dk = added.reshape(2, 2, *added.shape[1:]).sum(1)
    return out, dk


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace(attend, INPUTS)


def made(graph: Graph, words: str, name: str = "out") -> Any:
    nodes = sorted(upstream(graph, [graph.places()[name]]))
    edit = next(one for one in edits(graph, nodes) if one.words == words)
    with np.errstate(all="ignore"):
        return budgets(edited(graph, edit)[0], Contract())[name].value


def right(mask: Any = None, kept: Any = True, **changed: Any) -> tuple[Any, Any]:
    """out and dk."""
    q, k, v, lse = (changed.get(name, x) for name, x in INPUTS.items())
    mask = np.tri(ROWS, KEYS, KEYS - ROWS, dtype=bool) if mask is None else mask
    lse = lse[..., None] if lse.ndim == 2 else lse
    probs = np.where(mask, np.exp(q @ k.repeat(2, 0).swapaxes(1, 2) - lse), 0.0) * kept
    return probs @ v.repeat(2, 0), (probs.swapaxes(1, 2) @ q).reshape(2, 2, KEYS, 8).sum(1)


def test_masks_of_whole_tiles_and_without_need(graph: Graph) -> None:
    mask = np.tri(ROWS, KEYS, KEYS - ROWS, dtype=bool)
    whole = in_whole_tiles(mask, 16)
    assert whole[:16, :36].all() and whole[16:].all() and not in_whole_tiles(np.tri(40, 40, dtype=bool), 16)[0, 16]
    words = "mask is True in whole tiles of 16 by 16, where it is True in a part of them"
    np.testing.assert_allclose(made(graph, words), right(whole)[0])
    below = mask & np.tri(ROWS, KEYS, dtype=bool)
    np.testing.assert_allclose(made(graph, "probs is 0 behind its diagonal 0"), right(below)[0])


def test_a_mask_that_is_computed_from_places_is_one_too() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.T
        shown = torch.arange(k.shape[0]) <= torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
        probs = torch.exp(torch.where(shown, scores, -torch.inf))
        out = probs @ v
        return out

    q, k, v = (torch.from_numpy(INPUTS[name][0]) for name in "qkv")
    graph = unfolded(trace(attend, {"q": q, "k": k, "v": v}))
    mask, probs = np.tri(ROWS, KEYS, KEYS - ROWS, dtype=bool), np.exp((q @ k.T).numpy())
    words = "shown is True in whole tiles of 16 by 16, where it is True in a part of them"
    np.testing.assert_allclose(made(graph, words), probs * in_whole_tiles(mask, 16) @ v.numpy())


def test_tiles_that_no_sum_has(graph: Graph) -> None:
    rows = np.arange(ROWS)[:, None]
    found = made(graph, "added leaves out the last, partial tile of 16 rows", "dk")
    np.testing.assert_allclose(found, right(kept=rows < 16)[1])
    found = made(graph, "out leaves out the last, partial tile of 16 columns")
    np.testing.assert_allclose(found, right(kept=np.arange(KEYS) < 32)[0])
    found = made(graph, "scores is not computed in the last, partial tile of 16 rows, which added leaves out", "scores")
    assert np.isnan(found[:, 16:]).all() and np.isfinite(found[:, :16]).all()


def test_rows_of_another_place_in_their_tile(graph: Graph) -> None:
    rows = np.arange(ROWS)
    after = rows - rows % 16 + (rows % 16 + 1) % 16
    lse = np.pad(INPUTS["lse"], [(0, 0), (0, 12)])[:, after]  # 0 behind the end
    found = made(graph, "lse is read at the next row, in tiles of 16, in scores - lse only")
    np.testing.assert_allclose(found, right(lse=lse)[0])


def test_operands_of_another_length_and_heads_of_another_group(graph: Graph) -> None:
    padded = np.pad(INPUTS["k"], [(0, 0), (0, 0), (0, 4)])
    np.testing.assert_allclose(made(graph, "values is keys, as far as it goes, in out only"), right(v=padded)[0])
    other = np.arange(HEADS) % 2
    probs = np.where(np.tri(ROWS, KEYS, 20), np.exp(INPUTS["q"] @ INPUTS["k"].repeat(2, 0).swapaxes(1, 2)
                     - INPUTS["lse"][..., None]), 0.0)  # fmt: skip
    added = probs.swapaxes(1, 2) @ INPUTS["q"]
    words = "dk is added up over the heads that share i % 2, in place of i // 2"
    wanted = np.stack([added[other == head].sum(0) for head in range(2)])
    np.testing.assert_allclose(made(graph, words, "dk"), wanted)


def test_a_result_that_is_not_written_to_the_end_is_nan_there(graph: Graph) -> None:
    found = made(graph, "out is not written from 8 on along axis 2")
    assert np.isnan(found[..., 8:]).all() and np.isfinite(found[..., :8]).all()


def test_nan_by_accident_explains_none_that_a_kernel_has() -> None:
    assert not {"power", "step", "factor", "places"} & {*MAKE_NAN}
