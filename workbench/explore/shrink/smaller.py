"""The way down: hypothesis' shrinker from the start, then every plain value that it may have stepped over."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from workbench.case.fields import DRAWN, of_role
from workbench.explore.shrink.attempts import Attempts, Outcome
from workbench.explore.shrink.space import COUNTS, FEATURES, LENGTHS, MASKS, axes, changed, coordinates, seeds

#: counts below this are all tried: a run of so small a case takes some hundredths of a second
SMALL = 64
#: tiles of kernels of ours that are tried, each another compile; they take multiples of 16
TILES = (16, 32, 64)
#: a head_dim that every kernel of ours takes, in the least of the sizes to which it is rounded up
NARROW = 16
_KEY = b"start"  #: of the database, which holds the start alone


def descend(attempts: Attempts, tiled: bool) -> None:
    """Make the best as small and plain as it gets: nothing plainer in one coordinate fails then in the same way, of
    what was tried. `tiled`: tiles and splits are choices of the case.
    """
    _leap(attempts, tiled)
    wide = {name: value for name, value in coordinates(attempts.best).items() if name in ("seqlen_q", "head_dim")}
    before = None
    while attempts.best != before and not attempts.late:
        by_hypothesis(attempts, axes(attempts.best, tiled))
        before = attempts.best
        _nearby(attempts, tiled)
        _shorter(attempts)
        _luckier(attempts, tiled, wide)
        if tiled:
            _smaller_tiles(attempts)


def by_hypothesis(attempts: Attempts, among: Mapping[str, Sequence[Any]]) -> None:
    """Shrink the best with hypothesis, which replays it first and goes on from there. Each coordinate of `among` is one
    choice, the place of its value; what inputs are drawn from is left for later.
    """
    from hypothesis import HealthCheck, Phase, Verbosity, find, settings
    from hypothesis import strategies as st
    from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes

    among = {name: values for name, values in among.items() if name not in of_role(DRAWN)}
    if not among:
        return
    at = coordinates(attempts.best)
    least = start = tuple(values.index(at[name]) for name, values in among.items())
    database = InMemoryExampleDatabase()
    # with a choice too many: what is replayed to the letter is taken for shrunk already
    database.save(_KEY, choices_to_bytes((*start, 0)))
    fixed = attempts.best

    def fails(places: tuple[int, ...]) -> bool:
        nonlocal least
        changes = {name: among[name][place] for name, place in zip(among, places, strict=True)}
        if attempts.outcome(**changes) is not Outcome.FAILS:
            return False
        if places < least:
            least, attempts.best = places, changed(fixed, **changes)
        return True

    quiet = settings(
        database=database,
        phases=(Phase.reuse, Phase.shrink),
        verbosity=Verbosity.quiet,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    places = st.tuples(*(st.integers(0, len(values) - 1) for values in among.values()))
    with _alike_everywhere():
        find(places, fails, settings=quiet, database_key=_KEY)


@contextmanager
def _alike_everywhere() -> Iterator[None]:
    """Work ends the search, not the 300 s after which hypothesis stops, and one seed draws its order. `find` has no
    option for the former, and with `random=` it takes no database.
    """
    from hypothesis import core
    from hypothesis.internal.conjecture import engine

    before = engine.MAX_SHRINKING_SECONDS, core.threadlocal._hypothesis_global_random
    engine.MAX_SHRINKING_SECONDS, core.threadlocal._hypothesis_global_random = 2**31, Random(0)
    try:
        yield
    finally:
        engine.MAX_SHRINKING_SECONDS, core.threadlocal._hypothesis_global_random = before


def below(value: Any, values: Sequence[Any]) -> Iterator[Any]:
    """What is tried of the values of a coordinate that are plainer than its own, the plainest first: of counts the
    small ones, and those that leave the same remainder, as a failure that comes and goes with tiles may need.
    """
    plainer = values[: values.index(value)]
    if not isinstance(values, range):
        yield from plainer
        return
    moduli = [2**n for n in range(4, value.bit_length())]
    alike = {value % m + k * m for m in moduli for k in (0, 1, 2)}
    yield from (n for n in plainer if n <= SMALL or n in alike)


def _nearby(attempts: Attempts, tiled: bool) -> None:
    """Try what is plainer in one coordinate, or in both lengths alike, until nothing of it fails."""
    before = None
    while attempts.best != before:
        before = attempts.best
        for name, values in axes(attempts.best, tiled).items():
            at = coordinates(attempts.best)
            any(attempts.fails(**{name: value}) for value in below(at[name], values))
        at = coordinates(attempts.best)
        if at.get("seqlen_q") == (length := at.get("seqlen_k")) is not None:
            any(attempts.fails(seqlen_q=n, seqlen_k=n) for n in below(length, range(1, length + 1)))


def _shorter(attempts: Attempts) -> None:
    """Fewer sequences of a ragged batch, and shorter ones, in queries, in keys and in both alike."""
    for b in reversed(range(attempts.best.batch if attempts.best.ragged else 0)):
        lengths = _lengths(attempts)
        if any(len(some) > 1 for some in lengths.values()):
            attempts.fails(**{name: (*some[:b], *some[b + 1 :]) for name, some in lengths.items()})
    for b in range(attempts.best.batch if attempts.best.ragged else 0):
        for names in ([*_lengths(attempts)], *([name] for name in _lengths(attempts))):
            lengths = _lengths(attempts)
            most, *other = {lengths[name][b] for name in names}
            if most and not other:
                any(
                    attempts.fails(**{name: (*lengths[name][:b], n, *lengths[name][b + 1 :]) for name in names})
                    for n in below(most, range(1, most + 1))
                )


def _lengths(attempts: Attempts) -> dict[str, tuple[int, ...]]:
    """The lengths of the sequences of the best, by coordinate."""
    return {name: some for name in LENGTHS if (some := coordinates(attempts.best)[name]) is not None}


def _luckier(attempts: Attempts, tiled: bool, wide: Mapping[str, int]) -> None:
    """Counts lower by one, with other seeds, where passing is an accident of the draw; keys also with as many rows and
    dims as at the start (`wide`), so that some row has what the failure needs, such as its largest score at the last
    key.
    """
    among = seeds(attempts.best)
    for name in axes(attempts.best, tiled):
        more = [wide] if name == "seqlen_k" else []
        while (
            name in COUNTS
            and (now := coordinates(attempts.best)[name]) > 1
            and any(attempts.fails(**{name: now - 1, **luck}) for luck in (*({"seed": n} for n in among), *more))
        ):
            pass


def _leap(attempts: Attempts, tiled: bool) -> None:
    """The smallest tiles at once, so that all that follows runs on them: with a narrow head, too, where that fails; and
    without all that the case has beside plain attention, each of which is another build.
    """
    at = coordinates(attempts.best)
    plain = {name: usual for name, usual in FEATURES.items() if name not in MASKS and at[name] != usual}
    smallest = {"block_q": TILES[0], "block_k": TILES[0]} if tiled else {}
    narrow = {"head_dim": min(NARROW, attempts.best.head_dim)} if tiled else {}
    if plain and attempts.fails(**smallest, **narrow, **plain):
        return
    if tiled:
        attempts.fails(**smallest, **narrow) or attempts.fails(**smallest)


def _smaller_tiles(attempts: Attempts) -> None:
    """The smallest tiles, both, else one after the other."""
    if attempts.fails(block_q=TILES[0], block_k=TILES[0]):
        return
    for name in ("block_q", "block_k"):
        now = getattr(attempts.best, name) or math.inf
        any(attempts.fails(**{name: size}) for size in TILES if size < now)
