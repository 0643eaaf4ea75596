"""The file of a sweep: one SQLite database, with a row for each case from when it is known."""

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workbench.case.case import Case
from workbench.explore.sweep.plan import Plan
from workbench.explore.sweep.row import Row, case_id, of_dict
from workbench.refusal import Refusal

SCHEMA = "workbench.sweep-file/1"
#: seconds between two commits: what a kill of this process loses is run again
COMMIT_S = 1.0
_TABLES = """
CREATE TABLE sweep (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE cases (id TEXT PRIMARY KEY, position INTEGER NOT NULL, "case" TEXT NOT NULL);
CREATE TABLE rows (
    id TEXT PRIMARY KEY REFERENCES cases, outcome TEXT NOT NULL, origin TEXT, cause TEXT, over_budget REAL, bits TEXT,
    seconds REAL NOT NULL, reason TEXT NOT NULL, record TEXT NOT NULL
);
CREATE TABLE traces (id TEXT PRIMARY KEY REFERENCES rows, bytes INTEGER NOT NULL, first INTEGER NOT NULL);
"""


class Store:
    """An open file of a sweep; of a context manager, which commits and closes it."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection
        self._committed = time.monotonic()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.commit()
        self.connection.close()

    def add(self, row: Row) -> None:
        """Write a row, in place of one of the same case."""
        cause = next((one.id for one in row.causes.values() if one is not None), None)
        origin = next(iter(row.origins), None)
        figures = (row.outcome, origin, cause, row.over_budget, row.bits, row.seconds, row.reason)
        record = json.dumps(row.as_dict())
        self.connection.execute("INSERT OR REPLACE INTO rows VALUES (?,?,?,?,?,?,?,?,?)", (row.id, *figures, record))
        if time.monotonic() > self._committed + COMMIT_S:
            self.commit()

    def commit(self) -> None:
        """Have what was written stay, whatever becomes of this process."""
        self.connection.commit()
        self._committed = time.monotonic()

    def rows(self) -> list[Row]:
        """The rows, in the order of the cases."""
        found = self.connection.execute("SELECT record FROM rows JOIN cases USING (id) ORDER BY position")
        return [of_dict(json.loads(record)) for (record,) in found]

    def traces(self) -> dict[str, tuple[int, bool]]:
        """Case -> the bytes of its trace, and whether it is the first of its group."""
        return {id: (size, bool(first)) for id, size, first in self.connection.execute("SELECT * FROM traces")}

    def add_trace(self, id: str, size: int, first: bool) -> None:
        """Note that the trace of a case was kept."""
        self.connection.execute("INSERT OR REPLACE INTO traces VALUES (?,?,?)", (id, size, int(first)))

    def drop_trace(self, id: str) -> None:
        """Note that it no longer is."""
        self.connection.execute("DELETE FROM traces WHERE id = ?", (id,))


def created(path: Path, plan: Plan) -> Store:
    """A new file of a plan; Refusal where there is one, or none can be."""
    if path.exists():
        raise Refusal(f"--out {path} exists: continue it with --resume, or use a new file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path)
        connection.executescript(_TABLES)
    except (OSError, sqlite3.Error) as error:
        raise Refusal(f"--out {path}: {error}") from None
    kept = {"schema": SCHEMA, "plan": json.dumps(_plan(plan)), "identity": json.dumps(plan.identity())}
    connection.executemany("INSERT INTO sweep VALUES (?,?)", kept.items())
    cases = ((case_id(case), i, json.dumps(case.as_dict())) for i, case in enumerate(plan.cases))
    connection.executemany("INSERT INTO cases VALUES (?,?,?)", cases)
    connection.commit()
    return Store(path, connection)


def continued(path: Path, plan: Plan) -> Store:
    """The file of a sweep that was begun with the same plan; Refusal where it was another, with what differs."""
    store = opened(path)
    before, now = json.loads(_kept(store)["identity"]), plan.identity()
    differ = [f"{name}: was {before.get(name)}, is {now[name]}" for name in now if now[name] != before.get(name)]
    if differ:
        store.connection.close()
        raise Refusal(f"--resume needs the options with which {path} was begun:\n  " + "\n  ".join(differ))
    return store


def opened(path: Path) -> Store:
    """The file of a sweep; Refusal for what is none."""
    if not path.is_file():
        raise Refusal(f"{path}: no such file; a sweep writes one with --out")
    connection = sqlite3.connect(path)
    store = Store(path, connection)
    try:
        schema = _kept(store)["schema"]
    except (sqlite3.Error, KeyError):
        schema = "none"
    if schema != SCHEMA:
        connection.close()
        raise Refusal(f"{path} is not the file of a sweep: its schema must be {SCHEMA}; got {schema}")
    return store


def plan_of(store: Store) -> Plan:
    """The plan of a file."""
    plain = json.loads(_kept(store)["plan"])
    cases = store.connection.execute('SELECT "case" FROM cases ORDER BY position')
    return Plan(**plain, cases=tuple(Case(**json.loads(case)) for (case,) in cases))


def _plan(plan: Plan) -> dict[str, Any]:
    """All but the cases, which have a table."""
    given = {name: dict(x) if isinstance(x, Mapping) else x for name, x in plan.given.items()}
    return {"target": plan.target, "given": given, "timeout": plan.timeout, "memory_gb": plan.memory_gb}


def _kept(store: Store) -> dict[str, str]:
    rows: Iterable[tuple[str, str]] = store.connection.execute("SELECT name, value FROM sweep")
    return dict(rows)
