"""How a sequence is dealt to ranks: every token once, in each order."""

import numpy as np
import pytest

from workbench.case.ranks import ORDERS, Rank, bounds_of, dealt, indices, of_lists, spoken
from workbench.refusal import Refusal


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("length", "ranks"), [(16, 4), (17, 3), (3, 5), (1, 1)])
def test_every_token_is_held_once(order: str, length: int, ranks: int) -> None:
    held = [indices(one) for one in dealt(length, ranks, order)]
    assert len(held) == ranks and sorted(np.concatenate(held)) == [*range(length)]


def test_orders_are_those_of_their_papers() -> None:
    assert [[*indices(x)] for x in dealt(8, 2, "contiguous")] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [[*indices(x)] for x in dealt(8, 2, "zigzag")] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert [[*indices(x)] for x in dealt(8, 2, "striped")] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(Refusal, match="order must be one of contiguous, zigzag, striped; got 'ring'"):
        dealt(8, 2, "ring")


def test_a_rank_survives_json() -> None:
    rank = Rank(dealt(12, 3, "zigzag")[1], dealt(9, 3, "striped")[1])
    assert of_lists(rank.as_lists()) == rank


def test_bounds_are_those_of_keys_one_rank_behind_the_other() -> None:
    assert bounds_of([Rank((range(0, 4), range(12, 16))), Rank(()), Rank((range(4, 12),))]) == (0, 8, 8, 16)


def test_splits_are_said_to_be_ranks_but_for_names() -> None:
    words = "per-split: 4 splits, the last split's tile, log(splits) of split_k with splits=4, split_bounds and split=2"
    said = "per-rank: 4 ranks, the last rank's tile, log(ranks) of split_k with splits=4, split_bounds and split=2"
    assert spoken(words, (Rank(()),)) == said and spoken(words, ()) == words
