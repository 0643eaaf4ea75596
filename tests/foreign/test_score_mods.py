"""score_mods of flex_attention, known by what they compute."""

from typing import Any

import pytest

from workbench import Refusal
from workbench.foreign import score_mods
from workbench.foreign.score_mods import known_score_mod

torch = pytest.importorskip("torch", reason="torch is not installed")

Q, K = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 7, 8)
B, H, I, J = (
    torch.arange(n).view(shape) for n, shape in ((2, (-1, 1, 1, 1)), (4, (-1, 1, 1)), (5, (-1, 1)), (7, (-1,)))
)
ADDED = torch.randn(2, 1, 5, 7, generator=torch.Generator().manual_seed(0))
SMALLEST = torch.finfo(torch.float32).min


def of_transformers(softcap: float | None, mask: Any) -> Any:
    """As transformers.integrations.flex_attention makes it."""

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if mask is None else score + mask[b][0][i][j]

    return score_mod


def hidden(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return torch.where(i >= j, score, -torch.inf)


KNOWN = {
    "nothing": (of_transformers(None, None), None, None),
    "softcap": (of_transformers(20.0, None), None, 20.0),
    "mask": (of_transformers(None, ADDED), ADDED, None),
    "softcap and mask": (of_transformers(3.0, ADDED), ADDED, 3.0),
    "finite mask": (of_transformers(50.0, torch.where(ADDED > 0, 0.0, SMALLEST)),
                    torch.where(ADDED > 0, 0.0, SMALLEST), 50.0),
    "alibi": (lambda s, b, h, i, j: s + (j - i) * 0.5 ** (h + 1), (J - I) * 0.5 ** (H + 1) + 0 * B, None),
    "-inf": (hidden, torch.where(I >= J, 0.0, -torch.inf) + 0.0 * (B + H), None),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_what_adds_and_caps_is_known(name: str) -> None:
    score_mod, added, softcap = KNOWN[name]
    found, cap = known_score_mod(score_mod, Q, K)
    assert (cap is None) == (softcap is None) and (cap is None or abs(cap - softcap) < 1e-9)
    assert (found is None) == (added is None)
    assert added is None or torch.equal(found, added.expand(2, 4, 5, 7).float())


OTHERS = {
    "scaled": lambda s, b, h, i, j: 2 * s,
    "clamped": lambda s, b, h, i, j: s.clamp(-5, 5),
    "squared": lambda s, b, h, i, j: s + 0.01 * s * s,
    "other cap of a head": lambda s, b, h, i, j: (h + 5.0) * torch.tanh(s / (h + 5.0)),
    "one score": lambda s, b, h, i, j: torch.where((i == 3) & (j == 2) & (h == 1), s * 1.5, s),
    "nan": lambda s, b, h, i, j: torch.where(i == j, torch.nan, s),
    "nothing of the score": lambda s, b, h, i, j: 0 * s,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_computes_anything_else_is_refused_with_its_name(name: str) -> None:
    with pytest.raises(Refusal, match="with the score_mod <lambda>, which does more than cap scores or add to them"):
        known_score_mod(OTHERS[name], Q, K)


def test_a_call_of_many_scores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_mods, "LARGEST", 2 * 4 * 5 * 7 - 1)
    with pytest.raises(Refusal, match="with the score_mod hidden, of more than 279 scores"):
        known_score_mod(hidden, Q, K)
