"""What kernels take beyond dense attention of one width, drawn at random. Each feature is a build of its own of kernels
of ours: a case has one of them, where it is asked for, or several, which is one more.
"""

from collections.abc import Callable, Mapping
from typing import Any

from workbench.explore.draw import Among, Between, Draw

Fields = dict[str, Any]
#: beside the fields of a case: whether rows may see no key
EMPTY_ROWS = "empty_rows"
#: features of sequences of lengths of their own
RAGGED = ("padded", "packed", "paged")

_LENGTHS_Q, _LENGTHS_K, _SEQUENCES = Between(0, 66), Between(0, 149), Between(2, 4)
_PAGES = {"page_size": Among((16, 8, 1, 3, 64)), "kv_layout": Among(("NHD", "HND"))}


def _packed(draw: Draw, fields: Fields) -> Fields:
    """Sequences behind each other, where rows may see no key some of them without queries or keys."""
    count = draw(_SEQUENCES)
    if fields[EMPTY_ROWS]:
        lengths_q, lengths_k = (tuple(draw(x) for _ in range(count)) for x in (_LENGTHS_Q, _LENGTHS_K))
    else:
        lengths_k = tuple(draw(Between(1, fields["seqlen_k"])) for _ in range(count))
        most = (min(n, fields["seqlen_q"]) if _hides(fields) else fields["seqlen_q"] for n in lengths_k)
        lengths_q = tuple(draw(Between(1, n)) for n in most)
    return {"batch": None, "seqlen_q": None, "seqlen_k": None, "seqlens_q": lengths_q, "seqlens_k": lengths_k}


def _padded(draw: Draw, fields: Fields) -> Fields:
    """Caches with room for the longest sequence."""
    keys = _LENGTHS_K
    if not fields[EMPTY_ROWS]:  # all queries of the box are there
        least = min(fields["seqlen_q"], fields["seqlen_k"]) if _hides(fields) else 1
        keys = Between(least, fields["seqlen_k"])
    lengths = tuple(draw(keys) for _ in range(draw(_SEQUENCES)))
    return {"batch": None, "seqlen_k": None, "seqlens_k": lengths}


def _hides(fields: Fields) -> bool:
    """Whether a row that has more keys before it may see none of its own."""
    return bool(fields["causal"] or fields.get("window"))


def _paged(draw: Draw, fields: Fields) -> Fields:
    """Caches in pages, of queries behind each other in half of all cases."""
    sequences = draw(Among((_padded, _packed)))(draw, fields)
    return sequences | {name: draw(range_) for name, range_ in _PAGES.items()}


def _shared(draw: Draw, fields: Fields) -> Fields:
    """v as the first dims of k."""
    scale = fields["head_dim"] ** -0.5 if fields["scale"] is None else fields["scale"]
    return {"shared_kv": True, "head_dim_v": draw(Between(1, fields["head_dim"])), "scale": scale}


def _wide(draw: Draw, fields: Fields) -> Fields:
    """The widths of MLA, of keys as they are trained and absorbed (DeepSeek-AI, DeepSeek-V2, 2024)."""
    head_dim, head_dim_v = draw(Among(((192, 128), (576, 512))))
    tiles = {"block_q": 16, "block_k": 16} if "block_q" in fields else {}
    return {"head_dim": head_dim, "head_dim_v": head_dim_v, "shared_kv": head_dim == 576, "scale": 192**-0.5, **tiles}


def documents(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """A mask_mod: tokens see those of their own document, of 16 tokens, and the first one of all."""
    return (q_idx // 16 == kv_idx // 16) | (kv_idx == 0)


def nearer(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """A score_mod: scores are less the farther a key is, by head."""
    return score - 0.0625 * (h + 1) * abs(q_idx - kv_idx)


#: of each of these a mixed case has one, or none; pack_gqa is of kernels of ours alone, which have tiles
_MIXED = (
    RAGGED,
    ("head_dim_v", "shared_kv"),
    *(("sinks",), ("alibi",), ("dropout",), ("window",), ("softcap",), ("pack_gqa",)),
)


def _mixed(draw: Draw, fields: Fields) -> Fields:
    """Several at once."""
    found: Fields = {}
    for group in _MIXED if "block_q" in fields else _MIXED[:-1]:
        name = draw(Among((None, *group)))
        found |= {} if name is None else FEATURES[name](draw, fields | found)
    return found


#: name -> the fields that it draws, in place of what `fields` of the case were drawn so far
FEATURES: Mapping[str, Callable[[Draw, Fields], Fields]] = {
    "sinks": lambda draw, fields: {"sinks": "normal"},
    "alibi": lambda draw, fields: {"alibi_slopes": "geometric", "alibi_form": draw(Among(("distance", "column")))},
    "dropout": lambda draw, fields: {"dropout_p": draw(Among((0.5, 0.1, 0.3)))},
    "head_dim_v": lambda draw, fields: {"head_dim_v": draw(Between(1, fields["head_dim"]))},
    "shared_kv": _shared,
    "mla": _wide,
    "packed": _packed,
    "padded": _padded,
    "paged": _paged,
    "pack_gqa": lambda draw, fields: {"pack_gqa": True},
    "window": lambda draw, fields: {"window": (draw(Between(0, 64)), draw(Between(0, 64)))},
    "softcap": lambda draw, fields: {"softcap": draw(Among((50.0, 5.0)))},
    "mask_mod": lambda draw, fields: {"mask_mod": f"{__name__}:{documents.__name__}"},
    "mixed": _mixed,
    "score_mod": lambda draw, fields: {"score_mod": f"{__name__}:{nearer.__name__}"},
}
