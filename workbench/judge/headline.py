"""What was run, in a line: tables begin with it, pictures end with it."""

from workbench.case.fields import GIVEN, KEYWORDS, typed
from workbench.trace.trace import Trace


def headline(trace: Trace) -> str:
    """What was run, in a line."""
    case = trace.case_run
    heads = f"h={case.heads}" + (f" (kv {case.kv_heads})" if case.kv_heads != case.heads else "")
    # a foreign kernel may not say how it splits the keys, and its tiles of queries do not matter
    tiles = [f"tiles {case.block_q}x{case.block_k}"] if case.block_q and case.block_k else []
    splits = [f"{case.splits} splits"] if case.splits else []
    unmasked = [] if case.window else ["full"]
    mask = [f"causal {case.causal_alignment}"] if case.causal else unmasked
    faults = f" with {', '.join(trace.faults)}" if trace.faults else ""
    backend = "" if trace.backend == "foreign" else f" on {trace.backend}"
    shape = f"{case.dtype} b={case.batch} {heads} q={case.seqlen_q} k={case.seqlen_k} d={case.head_dim}"
    # of a kernel that was given its codes, or is not ours, not everything is known
    codes = [f"codes {case.codes}" + ("" if "scale_q" in trace.put_in else f" {case.quantiser_scale}")]
    codes += [f"{name} {getattr(case, name)}" for name in ("scores", "decode") if getattr(case, name)]
    inputs = [case.distribution, f"seed {case.seed}"]
    if case.distribution == GIVEN:
        inputs = [f"inputs {trace.called_with.inputs or GIVEN}"]
    fed = [f"put in: {', '.join(trace.put_in)}"] if trace.called_with.feed else []
    box = [] if trace.box is None else [f"only {trace.box}"]
    changed = [f"{name} {typed(x)}" for name in KEYWORDS if (x := getattr(case, name)) is not None]
    parts = [shape, *mask, *changed, *tiles, *splits, *(codes if case.codes else []), *inputs, *fed, *box]
    return f"{trace.target}{faults}{backend}: {', '.join(parts)}"
