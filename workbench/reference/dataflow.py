"""What stages read of each other."""

from collections.abc import Collection, Iterable

from workbench.reference.stage import Table, reads


def upstream(table: Table, name: str, ends: Collection[str] = (), near: bool = False) -> set[str]:
    """Stages and parameters that `name` is made of, not those in `ends` nor what lies only beyond them; a running state
    does not count as its own. `near`: also what bounds look at.
    """
    return with_upstream(table, (name,), ends, near) - {name}


def with_upstream(table: Table, names: Collection[str], ends: Collection[str] = (), near: bool = False) -> set[str]:
    """The stages and parameters `names`, in `ends` or not, and what is upstream of any."""
    found = {*names}
    queue = [*found]
    while queue:
        for parent in reads(table[queue.pop()].step, near):
            if parent not in found and parent in table and parent not in ends:
                found.add(parent)
                queue.append(parent)
    return found


def direct(table: Table, name: str) -> tuple[str, ...]:
    """Stages and inputs that a stage reads, in data-flow order: parameters stand for what they are made of."""
    found: list[str] = []
    queue = [*reads(table[name].step)]
    while queue:
        ref = queue.pop(0)
        if ref in table and not table[ref].dumped:
            queue = [*reads(table[ref].step), *queue]
        elif ref not in found:
            found.append(ref)
    return tuple(found)


def nearest_dumped(table: Table, name: str, dumped: Iterable[str]) -> tuple[str, ...]:
    """The dumped stages from which `name` is judged, in data-flow order; inputs are left out.

    Where a direct input was not dumped, its own inputs take its place, and so on up to q, k and v.
    """
    known = set(dumped)
    between = {name, *upstream(table, name, known)}
    read = {ref for stage in between for ref in reads(table[stage].step)}
    return tuple(stage for stage in table if stage in read & known)


def unseen_upstream(table: Table, name: str, dumped: Iterable[str]) -> tuple[str, ...]:
    """Stages between `name` and its nearest dumped ancestors that nobody saw, in data-flow order."""
    found = upstream(table, name, set(dumped))
    return tuple(stage for stage in table if stage in found and table[stage].dumped)
