"""Messages for threads that wait for what never comes."""

from workbench.cuda.emulator.area import Area
from workbench.cuda.emulator.kinds import FIRST_ALIGNED_KIND, FIRST_ASYNC_KIND, FIRST_WARP_KIND, SYNCWARP
from workbench.cuda.emulator.memory import Finding, located
from workbench.cuda.emulator.program import Program

#: kind of finding -> in words; the first that a thread suffers from
_PROBLEMS = {
    "deadlock": "deadlock",
    "missing-lanes": "lanes of the mask are missing",
    "divergent-barrier": "divergent barrier",
}


def stuck(
    program: Program, block: tuple[int, ...], block_dim: tuple[int, ...], state, masks, area: Area | None = None
) -> str:
    """Return why no thread of a block can go on.

    ``state`` holds what each thread waits for: a site, or -1 for a thread that has exited; ``masks`` what the threads
    at warp operations named; ``area`` what threads at barriers in shared memory lack.
    """
    groups, exited = _groups(program, state, masks, area)
    lines = []
    for (site, mask, lacking), threads in sorted(groups.items()):
        place = program.sites[site - 1]
        line = f"  {place.location}: {place.construct} reached by {_threads(threads, block_dim)}"
        if lacking:
            line += f" {lacking}"
        elif program.kinds[site] >= FIRST_WARP_KIND:
            missing = _missing(mask, threads, state, exited if program.kinds[site] == SYNCWARP else [])
            line += f" with mask {mask:#x}"
            if missing:
                line += f", without {_threads(missing, block_dim)}"
            elif program.kinds[site] >= FIRST_ALIGNED_KIND:
                line += f", in a warp of {len(state) % 32} threads"
            elif any(not mask >> (thread % 32) & 1 for thread in threads):
                line += ", which does not include them all"
        lines.append(line)
    if exited:
        lines.append(f"  exited: {_threads(exited, block_dim)}")
    return f"{program.name}: {_PROBLEMS[_kind(program, groups)]} in block {block}\n" + "\n".join(lines)


def waiting(
    program: Program, block: tuple[int, ...], block_dim: tuple[int, ...], state, masks, area: Area | None = None
) -> Finding:
    """Return the finding for a block of which no thread can go on; arguments as of `stuck`.

    Its place is that of a wait at a barrier in shared memory, else of the warp operation that lacks lanes, else of a
    barrier in a branch, else of the first one in the source.
    """
    groups, exited = _groups(program, state, masks, area)
    kind = _kind(program, groups)
    suspects = [key for key in groups if _suits(program, key, kind)]

    def suspicion(key):
        site = program.sites[key[0] - 1]
        return not site.conditional, located(site.location), key

    ordered = sorted(suspects, key=suspicion)
    first, *others = [*ordered, *sorted(key for key in groups if key not in suspects)]
    file, line = located(program.sites[first[0] - 1].location)
    other_file, other_line = located(program.sites[others[0][0] - 1].location) if others else (None, None)
    return Finding(
        kind=kind,
        array="",
        file=file,
        line=line,
        other_file=other_file,
        other_line=other_line,
        block=block,
        threads=tuple(groups[first]),
        index=(),
        count=1,
        text=stuck(program, block, block_dim, state, masks, area),
    )


def _kind(program, groups):
    """Return what the threads that wait at these sites suffer from."""
    return next(kind for kind in _PROBLEMS if any(_suits(program, key, kind) for key in groups))


def _suits(program, key, kind):
    """Whether a wait may be the reason for a finding of this kind."""
    wide = program.kinds[key[0]] >= FIRST_WARP_KIND
    asynchronous = not wide and program.kinds[key[0]] >= FIRST_ASYNC_KIND
    return {"deadlock": asynchronous, "missing-lanes": wide, "divergent-barrier": not (asynchronous or wide)}[kind]


def _groups(program, state, masks, area):
    """Return (site, mask, what is lacking) -> the threads that wait there, and the threads that have exited."""
    groups: dict[tuple[int, int, str], list[int]] = {}
    exited = []
    for thread, site in enumerate(state):
        if site < 0:
            exited.append(thread)
        else:
            mask = masks[thread] if program.kinds[site] >= FIRST_WARP_KIND else 0
            lacking = area.lacking(program, thread, site) if area else ""
            groups.setdefault((int(site), int(mask), lacking), []).append(thread)
    return groups, exited


def _missing(mask, threads, state, excused):
    first_threads = {thread // 32 * 32 for thread in threads}
    named = [first + lane for first in sorted(first_threads) for lane in range(32) if mask >> lane & 1]
    return [t for t in named if t < len(state) and t not in threads and t not in excused]


def _threads(threads, block_dim) -> str:
    """Return thread numbers as ranges; as (x, y, z) where the block has more than one dimension."""
    ranges = []
    for thread in threads:
        if ranges and ranges[-1][1] == thread - 1:
            ranges[-1][1] = thread
        else:
            ranges.append([thread, thread])
    shown = [_name(a, block_dim) if a == b else f"{_name(a, block_dim)}-{_name(b, block_dim)}" for a, b in ranges[:8]]
    more = f" and {len(ranges) - 8} more ranges" if len(ranges) > 8 else ""
    return f"thread{'s' if len(threads) > 1 else ''} {', '.join(shown)}{more}"


def _name(thread, block_dim) -> str:
    width, height, depth = block_dim
    if height == depth == 1:
        return str(thread)
    return f"({thread % width}, {thread // width % height}, {thread // (width * height)})"
