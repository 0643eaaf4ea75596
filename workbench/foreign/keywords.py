"""What a function is called with beside q, k and v: what a case has, and what libraries call it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from workbench.case import masks
from workbench.case.case import Case
from workbench.case.fields import KEYWORDS, typed
from workbench.case.memory import Paged, cu_seqlens, paged, poison_of
from workbench.case.mods import function_of
from workbench.case.stages import MASKS
from workbench.refusal import Refusal

#: what a call may have -> keywords for it; those of the lengths of sequences and of pages say how q, k and v lie
LENGTHS: Mapping[str, tuple[str, ...]] = {
    "cu_seqlens_q": ("cu_seqlens_q",),
    "cu_seqlens_k": ("cu_seqlens_k",),
    "max_seqlen_q": ("max_seqlen_q",),
    "max_seqlen_k": ("max_seqlen_k",),
    "seqlens_q": ("seqlens_q",),
    "seqlens_k": ("seqlens_k", "cache_seqlens"),
}
PAGES: Mapping[str, tuple[str, ...]] = {
    "block_table": ("block_table",),
    "page_size": ("page_size",),
    "kv_layout": ("kv_layout",),
    "kv_indptr": ("kv_indptr",),
    "kv_indices": ("kv_indices",),
    "kv_last_page_len": ("kv_last_page_len",),
}
FEATURES: Mapping[str, tuple[str, ...]] = {
    **KEYWORDS,
    "dropout_p": ("dropout_p",),
    "dropout_mask": ("dropout_mask",),
    "score_mod": ("score_mod",),
    "mask_mod": ("mask_mod",),
    "mask": ("mask", "attn_mask"),
    "bias": ("bias",),
}

#: what else a function is told where it takes the keyword; one that takes none has its own
BESIDE: Mapping[str, tuple[str, ...]] = {"alibi_form": ("alibi_form",), "causal_alignment": ("causal_alignment",)}


@dataclass(frozen=True)
class Asked:
    """A case and its inputs, of which a call is made."""

    case: Case
    read: Mapping[str, np.ndarray]  #: as of `inputs.by_name`
    own_mask: np.ndarray | None = None  #: the mask that was put in, without what mask_mod hides

    @cached_property
    def pages(self) -> Paged | None:
        """k and v in pages, poisoned where no sequence is; None of a case without."""
        if self.case.page_size is None:
            return None
        return paged(self.case, self.read["k"], self.read["v"], poison_of(self.case))

    @cached_property
    def seen(self) -> np.ndarray:
        """Which keys are seen, by all that hides some, bool [1 or b, 1 or h, q, k]."""
        found = masks.visible(self.case, self.read)
        return found if found.ndim == 4 else found[None, None]

    @property
    def uneven(self) -> tuple[str, ...]:
        """The fields of lengths, of sequences that are not all as long as their box."""
        case = self.case
        found = {"seqlens_q": (case.lengths_q, case.seqlen_q), "seqlens_k": (case.lengths_k, case.seqlen_k)}
        return tuple(name for name, (lengths, rows) in found.items() if np.any(lengths != rows))

    @property
    def hidden_beside_causal(self) -> bool:
        """Whether anything hides keys beside a causal mask."""
        return self.case.window is not None or bool(self.uneven) or "mask" in self.read

    @property
    def diagonals_differ(self) -> bool:
        """Whether a sequence has another diagonal than its box."""
        return bool(np.any(self.case.diagonals != self.case.diagonal))


#: what a call may have -> what it is of a case, None where a case has none; arrays in NumPy
VALUES: Mapping[str, Callable[[Asked], Any]] = {
    "scale": lambda a: a.case.scale,
    "causal": lambda a: a.case.causal,
    "softcap": lambda a: a.case.softcap,
    "window": lambda a: a.case.window,
    "window_left": lambda a: None if a.case.window is None else a.case.window[0],
    "alibi_slopes": lambda a: a.case.slopes,
    "alibi_form": lambda a: a.case.alibi_form,
    "causal_alignment": lambda a: a.case.causal_alignment,
    "sinks": lambda a: a.case.sink_logits,
    "dropout_p": lambda a: a.case.dropout_p,
    "dropout_mask": lambda a: a.read.get("dropout_mask"),
    "score_mod": lambda a: None if a.case.score_mod is None else function_of(a.case.score_mod, "score_mod"),
    "mask_mod": lambda a: None if a.case.mask_mod is None else function_of(a.case.mask_mod, "mask_mod"),
    "mask": lambda a: a.read.get("mask"),
    "bias": lambda a: a.read.get("bias"),
    "cu_seqlens_q": lambda a: cu_seqlens(a.case.lengths_q),
    "cu_seqlens_k": lambda a: cu_seqlens(a.case.lengths_k),
    "max_seqlen_q": lambda a: a.case.seqlen_q,
    "max_seqlen_k": lambda a: a.case.seqlen_k,
    "seqlens_q": lambda a: a.case.lengths_q.astype(np.int32),
    "seqlens_k": lambda a: a.case.lengths_k.astype(np.int32),
    "block_table": lambda a: a.pages and a.pages.block_table,
    "page_size": lambda a: a.case.page_size,
    "kv_layout": lambda a: a.case.kv_layout,
    "kv_indptr": lambda a: a.pages and a.pages.indptr,
    "kv_indices": lambda a: a.pages and a.pages.indices,
    "kv_last_page_len": lambda a: a.pages and a.pages.last_page_len,
}


@dataclass(frozen=True)
class Keywords:
    """What a user's function is called with, beside q, k and v, the scale and whether the case is causal."""

    values: Mapping[str, Any]  #: by its own keywords; arrays in NumPy
    packed: tuple[str, ...] = ()  #: those of q, k and v that lie packed
    paged: bool = False  #: whether k and v are caches in pages
    masked: bool = False  #: whether boxes are padded and the mask tells all that is hidden, causal and the window too


@dataclass(frozen=True)
class _Takes:
    """The keywords of a function."""

    name: str  #: the function's
    own: Mapping[str, str]  #: what a call may have -> its keyword
    needs: frozenset[str]  #: those without a default
    anything: bool  #: whether it takes any other (**options)

    def refusal(self, what: str, whose: str, advice: str = "add the keyword") -> Refusal:
        listed = f"; it takes {', '.join(self.own.values())}" if self.own else ""
        return Refusal(f"{self.name} takes no {what}, which {whose}: {advice}{listed}")


def _takes(parameters: Mapping[str, inspect.Parameter], name: str) -> _Takes:
    named = {**FEATURES, **LENGTHS, **PAGES, **BESIDE}.items()
    own = {what: word for what, words in named if (word := next((x for x in words if x in parameters), None))}
    needs = {what for what, word in own.items() if parameters[word].default is inspect.Parameter.empty}
    anything = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return _Takes(name, own, frozenset(needs), anything)


def keywords_of(parameters: Mapping[str, inspect.Parameter], asked: Asked, name: str) -> Keywords:
    """What a function with these parameters is called with; Refusal for what a case has and it does not take."""
    takes = _takes(parameters, name)
    paged = _paged(takes, asked)
    uneven, own = bool(asked.uneven), takes.own
    packed = tuple(
        x for x, key in (("q", "cu_seqlens_q"), ("k", "cu_seqlens_k"), ("v", "cu_seqlens_k"))
        if key in own and (uneven or key in takes.needs) and not (paged and x != "q")
    )  # fmt: skip
    told = {"seqlens_q"} if "q" in packed or "seqlens_q" in own else set()
    told |= {"seqlens_k"} if "k" in packed or paged or "seqlens_k" in own else set()
    untold = [x for x in asked.uneven if x not in told]
    features = _features(takes, asked, untold)
    due = {
        "cu_seqlens_q": "q" in packed,
        "cu_seqlens_k": "k" in packed or (paged and "seqlens_k" not in own),
        "max_seqlen_q": "q" in packed,
        "max_seqlen_k": "q" in packed or "k" in packed,
        "seqlens_q": uneven and "q" not in packed,
        "seqlens_k": paged or (uneven and "k" not in packed),
        **dict.fromkeys(PAGES, paged),
        **dict.fromkeys(BESIDE, True),
    }
    lying = {x: VALUES[x](asked) for x, is_due in due.items() if x in own and (is_due or x in takes.needs)}
    values = {own.get(what) or FEATURES[what][0]: x for what, x in {**features, **lying}.items()}
    return Keywords(values, packed, paged, bool(untold))


def _paged(takes: _Takes, asked: Asked) -> bool:
    """Whether k and v are to lie in pages; Refusal where the function does not take what says where."""
    size, own = asked.case.page_size, takes.own
    table, lists = "block_table" in own, {"kv_indptr", "kv_indices", "kv_last_page_len"} <= {*own}
    if size is None:
        if needed := [x for x in PAGES if x in takes.needs]:
            raise Refusal(f"{takes.name} takes {', '.join(needed)}, but the case has no pages: choose a page_size")
        return False
    if not table and not lists:
        raise takes.refusal(
            "block_table", f"the case has (page_size={size})", "add it, or kv_indptr, kv_indices and kv_last_page_len"
        )
    if not lists and not {"seqlens_k", "cu_seqlens_k"} & {*own}:
        raise takes.refusal("seqlens_k", "gives the end of the keys in pages", "add that keyword, or cu_seqlens_k")
    return True


def _features(takes: _Takes, asked: Asked, untold: list[str]) -> dict[str, Any]:
    """Those of a case by name; with a mask of all that is hidden where lengths are `untold` by other keywords."""
    case, own = asked.case, takes.own
    found = {what: VALUES[what](asked) for what in FEATURES}
    if "mask_mod" in own:
        found["mask"] = asked.own_mask
    else:
        found["mask_mod"] = None  # the mask has what it hides
    if untold:
        whose = f"gives {', '.join(f'{x}={typed(getattr(case, x))}' for x in untold)}"
        if "mask" not in own:
            raise takes.refusal("cu_seqlens_q, seqlens_k or mask", whose, "add one of these keywords")
        if case.slopes is not None and case.alibi_form == "distance" and asked.diagonals_differ:
            raise takes.refusal("cu_seqlens_q", f"{whose}, from which ALiBi counts distances")
        found |= {"mask": asked.seen, "window": None, "mask_mod": None}
    found = {what: value for what, value in found.items() if value is not None}
    for what in found:
        if what in own or takes.anything:
            continue
        if what == "mask" and asked.own_mask is None:
            raise takes.refusal("mask_mod", f"the case has (mask_mod={typed(case.mask_mod)})", "add it, or mask")
        if what == "dropout_mask":
            whose = f"gives the probs that dropout_p={typed(case.dropout_p)} keeps"
        elif what in MASKS:
            whose = "the inputs hold"
        else:
            whose = f"the case has ({what}={typed(getattr(case, what))})"
        raise takes.refusal(FEATURES[what][0], whose)
    return found
