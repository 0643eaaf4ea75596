"""Messages for threads that wait for what never comes."""

from workbench.cuda.emulator.kinds import FIRST_ALIGNED_KIND, FIRST_WARP_KIND, SYNCWARP
from workbench.cuda.emulator.program import Program


def stuck(program: Program, block: tuple[int, ...], block_dim: tuple[int, ...], state, masks) -> str:
    """Return why no thread of a block can go on.

    ``state`` holds what each thread waits for: a site, or -1 for a thread that has exited; ``masks`` what the threads
    at warp operations named.
    """
    waiting: dict[tuple[int, int], list[int]] = {}
    exited = []
    for thread, site in enumerate(state):
        if site < 0:
            exited.append(thread)
        else:
            mask = masks[thread] if program.kinds[site] >= FIRST_WARP_KIND else 0
            waiting.setdefault((int(site), int(mask)), []).append(thread)
    lines = []
    warp_wide = False
    for (site, mask), threads in sorted(waiting.items()):
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
