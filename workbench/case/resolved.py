"""What of a case follows from what was given, and what does not go together; `case.Case` reads this."""

from collections.abc import Mapping
from typing import Any

from workbench.case.distributions import EXACT, FIXED, SMALLEST_CAP, SMALLEST_SCALE
from workbench.case.fields import FIELDS, typed
from workbench.case.formats import FORMATS
from workbench.case.stages import OF_HEADS
from workbench.refusal import Refusal

#: the fields that lengths resolve, and that resolve them
OF_LENGTHS = ("batch", "seqlen_q", "seqlen_k", "seqlens_q", "seqlens_k")
#: length of both where none is given
_USUAL = 128
#: what changes the scores or the weights of a row, and with them what the distributions EXACT are made for
_MOVES = ("alibi_slopes", "sinks", "dropout_p", "score_mod", "mask_mod")


def lengths_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of OF_LENGTHS, of those that are `given`, None where they are not: of both lengths one alone is that
    of both, and so are the lengths of sequences, of which a length is the largest. Refusal where they contradict each
    other.
    """
    found = dict(given)
    for name in ("seqlens_q", "seqlens_k"):
        if found[name] is not None:
            found[name] = FIELDS[name].rule.resolved(name, found[name])
    if found["seqlens_k"] is None and found["seqlen_k"] is None:
        found["seqlens_k"] = found["seqlens_q"]
    several = {x: lengths for x in "qk" if (lengths := found[f"seqlens_{x}"]) is not None}
    for x, lengths in several.items():
        if found[f"seqlen_{x}"] is None:
            found[f"seqlen_{x}"] = max(*lengths, 1)
    known = [n for n in (found["seqlen_q"], found["seqlen_k"]) if n is not None] or [_USUAL]
    found |= {name: known[0] for name in ("seqlen_q", "seqlen_k") if found[name] is None}
    if found["batch"] is None:
        found["batch"] = len(next(iter(several.values()), (0,)))
    for x, lengths in several.items():
        if len(lengths) != found["batch"]:
            raise Refusal(
                f"seqlens_{x} must have one length per sequence (batch={found['batch']}); got {len(lengths)}: "
                f"{typed(lengths)}"
            )
        largest = found[f"seqlen_{x}"]
        if isinstance(largest, int) and max(lengths) > largest:
            raise Refusal(f"seqlen_{x}={largest} must be the largest of seqlens_{x}; got {typed(lengths)}")
    return found


def scale_of(codes: str, given: str | None) -> str | None:
    """What shares a scale of codes of a format: `given`, or its usual one; None where that is a head, as of formats
    that know no other. Refusal where the format has no such scales.
    """
    known = FORMATS[codes].scales
    if given not in (None, *known):
        others = ", ".join(name for name, form in FORMATS.items() if given in form.scales)
        of = " or ".join(known)
        raise Refusal(f"{codes} codes take scale_of={of}; got scale_of={given}, which is for codes={others}")
    return known[0] if given is None and known[0] != "head" else given


def check_heads(case: Any) -> None:
    """Refusal where what there is of heads does not fit, or of dims."""
    if case.heads % case.kv_heads:
        raise Refusal(f"heads must be a multiple of kv_heads; got heads={case.heads}, kv_heads={case.kv_heads}")
    for name in OF_HEADS:
        if isinstance(x := getattr(case, name), tuple) and len(x) != case.heads:
            raise Refusal(f"{name} must have one number per head (heads={case.heads}); got {len(x)}: {typed(x)}")
    if case.shared_kv and case.head_dim_v > case.head_dim:
        raise Refusal(
            f"shared_kv: v is the first head_dim_v dims of k, so head_dim_v must be at most head_dim={case.head_dim}; "
            f"got head_dim_v={case.head_dim_v}"
        )


def check_fixed(case: Any) -> None:
    """Refusal where a distribution of fixed values does not fit the case."""
    drawn = case.distribution
    if case.input_std != 1:
        raise Refusal(f"distribution {drawn} has fixed values and takes no input_std; got {case.input_std!r}")
    needed = FIXED[drawn](case.seqlen_k)
    if case.head_dim < needed:
        raise Refusal(
            f"distribution {drawn} writes the key's index in binary over head_dim: seqlen_k={case.seqlen_k} needs "
            f"head_dim >= {needed}; got {case.head_dim}"
        )
    if drawn not in EXACT:
        return
    if beside := [name for name in _MOVES if getattr(case, name) is not None]:
        raise Refusal(f"distribution {drawn} leaves one score per row, which {' and '.join(beside)} would change")
    if case.shared_kv:
        raise Refusal(f"distribution {drawn} sets v itself, but with shared_kv v is part of k")
    if not SMALLEST_SCALE <= abs(case.scale):
        raise Refusal(
            f"distribution {drawn} needs a scale of at least {SMALLEST_SCALE} or at most -{SMALLEST_SCALE}, so that "
            f"scores reach below -200; got {case.scale!r}"
        )
    if case.softcap is not None and case.softcap < SMALLEST_CAP:
        raise Refusal(
            f"distribution {drawn} needs scores below -200, and so a softcap of at least {SMALLEST_CAP:g}; got "
            f"{case.softcap!r}"
        )
