"""Sets of elements in words: rules that make exactly these, never the box around them."""

import numpy as np
import pytest

from workbench import Case, run
from workbench.readings.finding import spans
from workbench.readings.reader import measured
from workbench.readings.sets import ROW_AXES, box, of_axes, of_keys


def grid(rows: int, keys: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(rows)[:, None], np.arange(keys)


def heads(of: np.ndarray, count: int = 1) -> np.ndarray:
    return np.broadcast_to(of, (1, count, *of.shape))


#: rows, keys, whether keys behind the diagonal are hidden, the set, and its words
RULES = {
    "loop of a causal kernel that ends with the tile of the top-left diagonal": (
        (96, 200, True, lambda i, j: j >= 64 * (i // 64) + 64), "keys from 64 (i div 64) + 64 on in row i",
    ),
    "mask aligned to the top left": (
        (32, 128, True, lambda i, j: j > i), "keys from i + 1 on in row i (the diagonal begins at the top left)",
    ),
    "aligned to the top left, more rows than keys": (
        (128, 32, False, lambda i, j: (j > i - 96) & (j <= i)),
        "keys from i - 95 to i in row i (the diagonal begins at the top left)",
    ),
    "two-sided window of a causal run": (
        (128, 128, False, lambda i, j: (j > i) & (j <= i + 16)), "keys from i + 1 to i + 16 in row i",
    ),
    "causal is ignored": ((64, 64, False, lambda i, j: j > i), "keys from i + 1 on in row i"),
    "window whose first key is wrong": ((64, 64, True, lambda i, j: j < i - 16), "keys up to i - 17 in row i"),
    "band is hidden": ((64, 64, False, lambda i, j: abs(i - j) <= 4), "keys from i - 4 to i + 4 in row i"),
    "all but a band is hidden": (
        (64, 64, False, lambda i, j: abs(i - j) > 4), "all keys but those from i - 4 to i + 4 in row i",
    ),
    "mask of the diagonal's tile is left out": (
        (128, 128, False, lambda i, j: (j > i) & (j // 32 == i // 32)), "keys from i + 1 to 32 (i div 32) + 31 in row i",
    ),
    "first key of a loop rounded down to a tile of 48": (
        (128, 128, True, lambda i, j: j >= 48 * (i // 48)), "keys from 48 (i div 48) on in row i",
    ),
    "diagonal off by one": ((48, 48, True, lambda i, j: j == i), "keys at offset +0 from the diagonal in rows 0-47"),
    "a tile": ((64, 64, False, lambda i, j: (j // 16 == 1) & (i // 32 == 1)), "keys 16-31 in rows 32-63"),
    "a tile of a causal run": ((64, 64, True, lambda i, j: j // 16 == 1), "keys 16-31 that rows 16-63 see"),
    "two tiles": (
        (64, 64, False, lambda i, j: (j // 16 == i // 16) & (i // 32 == 1)),
        "keys from 16 (i div 16) to 16 (i div 16) + 15 in row i (rows 32-63)",
    ),
    "tiles without an order": (
        (64, 64, False, lambda i, j: np.isin(j // 16 + 4 * (i // 16), (1, 3, 4, 6, 9, 14))),
        "6 of 16 tiles of 16 rows and 16 keys (such as rows 0-15 and keys 16-31)",
    ),
    "rows of some tiles": (
        (128, 128, False, lambda i, j: (j > i) & (j // 32 == i // 32) & np.isin(i // 32, (1, 2))),
        "keys from i + 1 to 32 (i div 32) + 31 in row i (rows 32-62, 64-94)",
    ),
    "tiles of 64 rows that end with a tile of 16 keys": (
        (128, 144, False, lambda i, j: (j >= i - 7) & (j < 64 * (i // 64) + 80)),
        "keys from i - 7 to 64 (i div 64) + 79 in row i",
    ),
    "rows that see other keys, and no other diagonal": (
        (64, 96, True, lambda i, j: (j > i) & (i >= 32)), "keys from i + 1 on in row i (rows 32-63)",
    ),
    "rows and keys behind whole tiles": (
        (100, 150, False, lambda i, j: (j >= 128) | (i >= 64)), "all keys of rows 64-99 and keys 128-149 in rows 0-63",
    ),
    "no rule": (
        (64, 64, False, lambda i, j: (i * i + 7 * j * j) % 11 == 3), "672 elements, such as keys ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "said"), RULES.values(), ids=RULES)
def test_keys_of_rows_are_said_as_a_rule(given: tuple, said: str) -> None:
    rows, keys, causal, rule = given
    i, j = grid(rows, keys)
    seen = (j <= i + keys - rows) if causal else np.ones((rows, keys), bool)
    of = rule(i, j) & seen
    words = of_keys(heads(of, 2), heads(seen, 2) if causal else None)
    assert words == said if not said.endswith(" ") else words.startswith(said)


def test_an_element_more_or_less_is_no_rule() -> None:
    i, j = grid(64, 64)
    of = heads(j > i).copy()
    assert of_keys(of) == "keys from i + 1 on in row i"
    of[0, 0, 40, 50] = False
    assert of_keys(of) == "2,015 elements, such as keys 1-63 of row 0"
    of[0, 0, 40, 50] = of[0, 0, 40, 3] = True
    assert of_keys(of) == "2,017 elements, such as keys 1-63 of row 0"


def test_lengths_of_batches_and_heads() -> None:
    j = np.arange(64)
    of = np.stack([np.broadcast_to(j >= first, (2, 16, 64)) for first in (37, 12, 50)])
    assert of_keys(of) == "keys from 37 on of batch 0, from 12 on of batch 1, from 50 on of batch 2"
    i, j = grid(64, 64)
    of = np.zeros((1, 4, 64, 64), bool)
    of[:, 1:3] = j > i
    assert of_keys(of) == "keys from i + 1 on in row i of heads 1-2"
    of[:, 2] = j > i + 7
    assert of_keys(of) == "keys from i + 1 on in row i of heads 1 and keys from i + 8 on in row i of heads 2"
    of[:, 3] = (i * i + j) % 7 == 0
    assert of_keys(of) == "4,198 elements, such as keys 1-63 of row 0 of head 1"


def test_what_rows_do_not_see_is_nothing_that_a_rule_could_miss() -> None:
    """Rows 0-31 see no key behind 40, so that nobody knows of these."""
    i, j = grid(64, 64)
    seen = (j < 40) | (i >= 32)
    assert of_keys(heads((j >= 16) & seen), heads(seen)) == "keys 16-63 that rows 0-63 see"
    assert of_keys(heads((j >= 16) & seen)).startswith("keys from 16 to ")


def test_rows_of_heads() -> None:
    of = np.zeros((1, 3, 16), bool)
    of[:, :2, 4:8] = True
    assert box(of, ROW_AXES) == of_axes(of, ROW_AXES) == "rows 4-7 of heads 0-1"
    of[:, 2, 5] = True
    assert not box(of, ROW_AXES) and of_axes(of, ROW_AXES) == "9 elements, such as rows 4-7 of head 0"
    assert of_axes(np.ones((1, 3, 16), bool), ROW_AXES) == "rows 0-15"


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ([0, 1, 2, 8], "0-2, 8"),
        ([x for x in range(512) if x % 32 >= 26], "26-31 of each 32 (from 26 to 511)"),
        (range(3, 64, 4), "3 of each 4 (from 3 to 63)"),
        ([x for x in range(64) if x % 4 == 3 and x != 31], "3, 7, 11, 15, 19, 23 and 9 more"),
        ([x for x in range(90) if x % 10 < 3], "0-2, 10-12, 20-22, 30-32, 40-42, 50-52 and 9 more"),
    ],
)
def test_indices(of: list[int], said: str) -> None:
    assert spans(np.array(of)) == said


def masked(rule):
    """A kernel that hides keys by a rule of its own, of i, j and the keys before the first query."""

    def function(q, k, v, *, scale, causal, **options):
        q, k, v = (x.astype(np.float32) for x in (q, k, v))
        i, j = grid(q.shape[2], k.shape[2])
        seen = rule(i, j, k.shape[2] - q.shape[2])
        scores = np.where(seen, q @ k.swapaxes(-1, -2) * np.float32(scale), np.float32(-np.inf))
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return p @ v / p.sum(-1, keepdims=True)

    return function


#: what a kernel hides, of which run, and what is read of it
MASKS = {
    "a loop that ends with the tile of the top-left diagonal": (
        lambda i, j, n: (j <= i + n) & (j < 32 * (i // 32) + 32), {"seqlen_q": 48, "seqlen_k": 100},
        "keys from 32 (i div 32) + 32 on in row i get no weight",
    ),
    "aligned to the top left": (
        lambda i, j, n: j <= i, {"seqlen_q": 32, "seqlen_k": 128},
        "keys from i + 1 on in row i (the diagonal begins at the top left) get no weight",
    ),
    "a window to both sides": (
        lambda i, j, n: abs(j - i - n) <= 16, {"seqlen_q": 127, "seqlen_k": 128, "window": (16, 0)},
        "masked keys get weight: keys from i + 2 to i + 17 in row i",
    ),
    "a window with one key less": (
        lambda i, j, n: (j <= i) & (j > i - 16), {"seqlen": 64, "window": (16, 0)},
        "keys at offset -16 from the diagonal in rows 16-63 get no weight",
    ),
    "the mask of the diagonal's tile is left out": (
        lambda i, j, n: j // 32 <= i // 32, {"seqlen": 96},
        "masked keys get weight: keys from i + 1 to 32 (i div 32) + 31 in row i",
    ),
    "a tile of keys is skipped": (
        lambda i, j, n: (j <= i) & (j // 16 != 1), {"seqlen": 64}, "keys 16-31 that rows 16-63 see get no weight",
    ),
    "keys of the last tile are seen by no full tile of rows": (
        lambda i, j, n: (j <= i) & (j < 16 * (i // 16) + 8), {"seqlen": 64},
        "keys from 16 (i div 16) + 8 on in row i get no weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "options", "said"), MASKS.values(), ids=MASKS)
def test_what_a_mask_does_is_read_as_a_rule(rule, options, said) -> None:
    found = measured(run(masked(rule), Case(head_dim=16, causal=True, **options)))
    assert [one.text for one in found.findings] == [f"{said} (measured with all of q set to 0)"] and found.proved
