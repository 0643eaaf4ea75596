"""Sums that run past the end of what they load: the edits, and a kernel without a mask."""

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from workbench import diff
from workbench.judge.reference.causes.edit import edited
from workbench.judge.reference.causes.library import edits
from workbench.reference.graph import Contract, budgets, trace

rng = np.random.default_rng(0)
X, W = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 20), (3, 20)))


def scaled(x, w):
    scores = x @ np.swapaxes(w, 0, 1)
    size = np.sum(x * x, axis=1)
    top = np.max(w, axis=1)
    out = scores * 2
    return out, size, top


def past(x: np.ndarray, more: int) -> np.ndarray:
    """Rows with what follows them in memory, NaN behind the last."""
    flat = np.append(x.astype(np.float64).ravel(), np.full(more, np.nan))
    return flat[np.arange(len(x))[:, None] * x.shape[1] + np.arange(x.shape[1] + more)]


def zeros(x: np.ndarray, more: int) -> np.ndarray:
    return np.pad(x, [(0, 0), (0, more)])


@pytest.mark.parametrize(
    ("words", "name", "wanted"),
    [
        ("scores runs 12 elements past the end of x and w", "scores", past(X, 12) @ past(W, 12).T),
        ("scores runs 12 elements past the end of x", "scores", past(X, 12) @ zeros(W, 12).T),
        ("scores runs 12 elements past the end of w", "scores", zeros(X, 12) @ past(W, 12).T),
        ("size runs 12 elements past the end of x", "size", (past(X, 12) ** 2).sum(1)),
        ("top runs 12 elements past the end of w", "top", past(W, 12).max(1)),
    ],
)
def test_sums_that_run_past_the_end(words: str, name: str, wanted: Any) -> None:
    graph = trace(scaled, {"x": X, "w": W})
    edit = next(one for one in edits(graph, range(len(graph.nodes)))
                if one.words == f"{words}, as loads without a mask do")  # fmt: skip
    with np.errstate(all="ignore"):
        found = budgets(edited(graph, edit)[0], Contract())[name].value
    assert np.isnan(wanted).any() and np.isfinite(wanted).any()
    np.testing.assert_allclose(found, wanted)


def norm(x, weight):
    ms = np.mean(x * x, axis=1, keepdims=True)
    y = x / np.sqrt(ms + 1e-6) * weight
    return y


def without_a_mask(x, weight):
    beyond = as_strided(x, (len(x), 32), x.strides)
    ms = np.sum(beyond * beyond, axis=1, keepdims=True) / np.float32(x.shape[1])
    return x / np.sqrt(ms + np.float32(1e-6)) * weight


def test_a_kernel_without_a_mask_is_named() -> None:
    def inputs(seed: int, dtype: str) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        return {"x": rng.standard_normal((8, 20), np.float32), "weight": rng.standard_normal(20, np.float32)}

    found = diff(without_a_mask, reference=norm, inputs=inputs)
    assert found.verdict == "bug"
    [cause] = found.explain().causes
    assert cause.proved
    assert cause.names[0].text.endswith("runs 12 elements past the end of x, as loads without a mask do")


def chosen(x, w):
    slope = np.where(x > 0, 1.0, 0.01)
    out = x * slope @ np.swapaxes(w, 0, 1)
    return out


def repeated(x, s):
    out = np.sum(x[0, :1] + np.broadcast_to(s[:, None], (5, 20)), axis=1)
    return out


@pytest.mark.parametrize(("reference", "given"), [(chosen, {"x": X, "w": W}), (repeated, {"x": X, "s": X[:, 0]})])
def test_terms_of_which_nobody_knows_what_follows_are_not_read_on(reference: Any, given: Any) -> None:
    """A mask that picks one of two constants depends on the index, and a broadcast scalar has no end in memory."""
    graph = trace(reference, given)
    some = [one for one in edits(graph, range(len(graph.nodes))) if one.family == "past the end"]
    assert all(edit.part(graph, i) is None for edit in some for i in edit.nodes)


def in_part(x):
    total = x.sum(-1)
    out = np.where(total > 0, np.log(total), total)
    return out


def test_nan_that_the_reference_has_itself_is_no_accident() -> None:
    def kernel(x):
        total = as_strided(x, (3, 32), x.strides).sum(-1)
        with np.errstate(all="ignore"):
            return np.where(total > 0, np.log(total), total)

    def inputs(seed: int, dtype: str) -> dict[str, Any]:
        return {"x": np.random.default_rng(seed).standard_normal((3, 20), np.float32)}

    [cause] = diff(kernel, reference=in_part, inputs=inputs).explain().causes
    assert cause.names[0].family == "past the end"
