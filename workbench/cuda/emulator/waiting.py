"""Messages for threads that wait for what never comes."""

from workbench.cuda.emulator.kinds import FIRST_ALIGNED_KIND, FIRST_WARP_KIND, SYNCWARP
from workbench.cuda.emulator.memory import Finding, located
from workbench.cuda.emulator.program import Program


def stuck(program: Program, block: tuple[int, ...], block_dim: tuple[int, ...], state, masks) -> str:
    """Return why no thread of a block can go on.

    ``state`` holds what each thread waits for: a site, or -1 for a thread that has exited; ``masks`` what the threads
    at warp operations named.
    """
    groups, exited = _groups(program, state, masks)
    lines = []
    warp_wide = False
    for (site, mask), threads in sorted(groups.items()):
        place = program.sites[site - 1]
        line = f"  {place.location}: {place.construct} reached by {_threads(threads, block_dim)}"
        if program.kinds[site] >= FIRST_WARP_KIND:
            warp_wide = True
            missing = _missing(mask, threads, state, exited if program.kinds[site] == SYNCWARP else [])
            line += f" with mask {mask:#x}"
            if missing:
                line += f", without {_threads(missing, block_dim)}"
            elif program.kinds[site] >= FIRST_ALIGNED_KIND:
                line += f", in a warp of {len(state) % 32} threads"
            elif any(not mask >> (thread % 32) & 1 for thread in threads):
                line += ", which does not name them all"
        lines.append(line)
    if exited:
        lines.append(f"  exited: {_threads(exited, block_dim)}")
    problem = "lanes of the mask are missing" if warp_wide else "divergent barrier"
    return f"{program.name}: {problem} in block {block}\n" + "\n".join(lines)


def waiting(program: Program, block: tuple[int, ...], block_dim: tuple[int, ...], state, masks) -> Finding:
    """Return the finding for a block of which no thread can go on; arguments as of `stuck`.

    Its place is that of the warp operation that lacks lanes, else of a barrier in a branch, else of the first one in
    the source.
    """
    groups, exited = _groups(program, state, masks)
    warp_wide = {key: threads for key, threads in groups.items() if program.kinds[key[0]] >= FIRST_WARP_KIND}

    def suspicion(key):
        site = program.sites[key[0] - 1]
        return not site.conditional, located(site.location), key

    ordered = sorted(warp_wide or groups, key=suspicion)
    first, *others = [*ordered, *sorted(key for key in groups if warp_wide and key not in warp_wide)]
    file, line = located(program.sites[first[0] - 1].location)
    other_file, other_line = located(program.sites[others[0][0] - 1].location) if others else (None, None)
    return Finding(
        kind="missing-lanes" if warp_wide else "divergent-barrier",
        array="",
        file=file,
        line=line,
        other_file=other_file,
        other_line=other_line,
        block=block,
        threads=tuple(groups[first]),
        index=(),
        count=1,
        text=stuck(program, block, block_dim, state, masks),
    )


def _groups(program, state, masks):
    """Return (site, mask) -> the threads that wait there, and the threads that have exited."""
    groups: dict[tuple[int, int], list[int]] = {}
    exited = []
    for thread, site in enumerate(state):
        if site < 0:
            exited.append(thread)
        else:
            mask = masks[thread] if program.kinds[site] >= FIRST_WARP_KIND else 0
            groups.setdefault((int(site), int(mask)), []).append(thread)
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
