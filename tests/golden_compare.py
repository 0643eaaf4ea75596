"""Two trees held against each other by what `golden` found in them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def hashed(x: Any) -> Any:
    """The hash of an array's shape, dtype and bytes, every NaN the same; a plain value as it is."""
    if not isinstance(x, np.ndarray):
        return x
    x = np.array(x, order="C")
    if x.dtype.kind == "f":
        x[np.isnan(x)] = np.nan
    head = f"{x.dtype.str} {x.shape} "
    return "sha256:" + hashlib.sha256(head.encode() + x.tobytes()).hexdigest()


def compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Print what differs between two documents of `records`; whether nothing does, and something was compared."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    first: dict[tuple[str, str, str], str] = {}
    totals: dict[str, list[int]] = {}
    for name in sorted({*old["traces"], *new["traces"]}):
        one, other = old["traces"].get(name), new["traces"].get(name)
        if one is None or other is None:
            groups.setdefault(("trace", "only in new" if one is None else "only in old", ""), []).append(name)
            continue
        for key in dict.fromkeys((*one["values"], *other["values"])):
            kind, _, stage = key.rpartition("/")
            of_kind = totals.setdefault(_class(kind), [0, 0])
            of_kind[0] += 1
            pair = [x["values"].get(key, "(nothing)") for x in (one, other)]
            if json.dumps(pair[0]) != json.dumps(pair[1]):
                of_kind[1] += 1
                group = (kind, stage, one["algorithm"])
                groups.setdefault(group, []).append(name)
                first.setdefault(group, _told(*pair))
    for label in ("made with", "tree"):
        print(f"{label}: {old[label]}" + ("" if old[label] == new[label] else f", and {new[label]}"))
    both = len({*old["traces"]} & {*new["traces"]})
    arrays = sum(str(x).startswith("sha256:") for t in old["traces"].values() for x in t["values"].values())
    print(f"\n{both} traces in both, {arrays} arrays in the old one\n")
    print(f"{'compared':40} {'of them':>8} {'differ':>8}")
    for kind, (count, differing) in totals.items():
        print(f"{kind:40} {count:8} {differing:8}")
    if groups:
        print(f"\n{'differing kind':52} {'stage':14} {'algorithm':9} {'traces':>6}  such as")
    for (kind, stage, algorithm), names in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{kind:52} {stage:14} {algorithm:9} {len(names):6}  {', '.join(names[:3])}")
        if told := first.get((kind, stage, algorithm)):
            print(f"    {told}")
    return both > 0 and arrays > 0 and not groups


def _class(kind: str) -> str:
    """The line of the totals in which a kind counts: all modes of the table together."""
    head, _, rest = kind.partition(": ")
    return f"table {rest.removesuffix(' (never judged)').split()[-1]}" if head == "table" else head


def _told(old: Any, new: Any) -> str:
    """What differs between two plain values, the first differing line of texts; nothing of hashes."""
    if str(old).startswith("sha256:") and str(new).startswith("sha256:"):
        return ""
    if isinstance(old, str) and isinstance(new, str):
        lines = [text.splitlines() for text in (old, new)]
        pairs = ((a, b) for a, b in zip(*lines, strict=False) if a != b)
        old, new = next(pairs, (f"{len(lines[0])} lines", f"{len(lines[1])} lines"))
    return f"{str(old)[:150]!r} -> {str(new)[:150]!r}"


def apart(old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> bool:
    """Print how far the arrays of two files of `arrays` are apart; whether not at all."""
    same = True
    for key in dict.fromkeys((*old, *new)):
        one, other = old.get(key), new.get(key)
        if one is None or other is None or one.shape != other.shape:
            print(f"{key}: {None if one is None else one.shape} and {None if other is None else other.shape}")
            same = False
        elif hashed(one) != hashed(other):
            a, b = one.astype(np.float64), other.astype(np.float64)
            with np.errstate(all="ignore"):
                off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, abs(a - b) / np.maximum(abs(a), abs(b)))
            off[np.isnan(off)] = np.inf
            place = tuple(map(int, np.unravel_index(off.argmax(), off.shape)))
            print(
                f"{key}: {np.count_nonzero(off)} of {off.size} elements, the farthest by {off.max():.3g} of it: "
                f"{float(a[place])!r} and {float(b[place])!r} at {place}"
            )
            same = False
    return same
