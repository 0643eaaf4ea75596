"""Functions of packages that a target may name."""

from docs.generators.markdown import code, escaped, table
from workbench.foreign.adapters import ADAPTERS


def adapters() -> str:
    """How the arrays of each lie, its preset, and its keywords."""
    rows = []
    for target, one in ADAPTERS.items():
        axes = [f"[{' '.join(x)}]" if x else "pages" for x in (one.q, one.kv)]
        lse = f"[{' '.join(one.lse)}]{', base 2' if one.base2 else ''}" if one.lse else "none"
        keywords = dict.fromkeys(word for words in one.takes.values() if words for word in words.split(", "))
        cells = (*axes, lse, one.contract.partition(",")[0] or "none")
        rows.append([code(target), *map(escaped, cells), ", ".join(map(code, keywords))])
    return table(["TARGET", "q, out", "k, v", "lse", "preset", "keywords"], rows)
