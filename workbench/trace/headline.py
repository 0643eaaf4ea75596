"""What was run, in a line: tables begin with it, pictures end with it."""

from workbench.case.case import Case
from workbench.case.fields import GIVEN, typed
from workbench.case.mask_parts import parts
from workbench.case.masks import spread
from workbench.case.ranks import spoken
from workbench.case.stages import BLOCKS
from workbench.trace.trace import Trace

#: elements of a mask that is told by its parts, at most
NAMED = 2**22
#: fields that change what is computed, in words, where they are as no usual case has them
_CHANGES = ("softcap", "window", "dropout_p", "score_mod", "mask_mod")


def headline(trace: Trace) -> str:
    """What was run, in a line."""
    case = trace.case_run
    # a foreign kernel may not say how it splits the keys, and its tiles of queries do not matter
    tiles = [f"tiles {case.block_q}x{case.block_k}"] if case.block_q and case.block_k else []
    splits = [f"{case.splits} {spoken('splits', trace.ranks)}"] if case.splits else []
    mask = [f"causal {case.causal_alignment}"] if case.causal else []
    mask += [x] if (x := _masked(trace)) else [] if case.causal or case.window else ["no mask"]
    faults = f" with {', '.join(trace.faults)}" if trace.faults else ""
    backend = "" if trace.backend == "foreign" else f" on {trace.backend}"
    # of a kernel that was given its codes, or is not ours, not everything is known
    of = "" if case.coded == "qkv" else f" of {' and '.join(case.coded)}"
    codes = [f"codes {case.codes}{of}" + ("" if "scale_k" in trace.put_in else f" {case.quantiser_scale}")]
    codes += [f"one scale per {case.scale_of}"] if case.scale_of in BLOCKS else []
    codes += [f"{name} {getattr(case, name)}" for name in ("scores", "decode") if getattr(case, name)]
    inputs = [f"{case.distribution} inputs", f"seed {case.seed}"]
    if case.distribution == GIVEN:
        inputs = [f"inputs {trace.called_with.inputs or GIVEN}", *(inputs[1:] if case.draws_beside else [])]
    fed = [f"fed: {', '.join(trace.put_in)}"] if trace.called_with.feed else []
    box = [] if trace.box is None else [f"only {trace.box}"]
    parts = [_shape(case), *mask, *_changed(case), *tiles, *splits, *(codes if case.codes else []), *inputs, *fed, *box]
    return f"{trace.target}{faults}{backend}: {', '.join(parts)}"


def _masked(trace: Trace) -> str:
    """What a mask that was put in hides, in words; empty of a run without one."""
    if "mask" not in trace.inputs:
        return ""
    mask = spread(trace.case, trace.inputs["mask"])
    found = parts(mask) if mask.size <= NAMED else None
    if found is None:
        return "masked"
    at_end = f" of the {found.end} keys" if found.end else ""
    padding = f"padding{at_end}" if found.padding.any() else ""
    return f"mask: {', '.join(filter(None, (found.band.name, padding))) or 'none'}"


def _shape(case: Case) -> str:
    """The dtype and every size, lengths of sequences among them."""
    heads = f"h={case.heads}" + (f" (kv {case.kv_heads})" if case.kv_heads != case.heads else "")
    q, k = (case.seqlens_q or case.seqlen_q, case.seqlens_k or case.seqlen_k)
    dims = f"d={case.head_dim}" + (f" (v {case.head_dim_v})" if case.head_dim_v != case.head_dim else "")
    shared = " shared" if case.shared_kv else ""
    return f"{case.dtype} b={case.batch} {heads} q={typed(q)} k={typed(k)} {dims}{shared}"


def _changed(case: Case) -> list[str]:
    """What there is beside plain attention, and pages."""
    found = [f"{name} {typed(x)}" for name in _CHANGES if (x := getattr(case, name)) is not None]
    if case.alibi_slopes is not None:
        form = "" if case.alibi_form == "distance" else f" by {case.alibi_form}"
        found.append(f"ALiBi {_of_heads(case.alibi_slopes)}{form}")
    if case.sinks is not None:
        found.append(f"sinks {_of_heads(case.sinks)}")
    if case.page_size is not None:
        found.append(f"pages of {case.page_size} {case.kv_layout}")
    return found


def _of_heads(x: str | tuple[float, ...]) -> str:
    """A number for each head, or the word for them."""
    return x if isinstance(x, str) else ",".join(f"{one:.4g}" for one in x)
