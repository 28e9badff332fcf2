"""The example of a nightly task, on the embedded engine and SQLite: it ends what is in doubt, and audits a day."""

from __future__ import annotations

import runpy
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onceward import FileBackend, RestartStrategy, SequenceSource, SqlAlchemySink, open_store, operations
from onceward.core.kit.crash_points import Step, hooked

from .engine_kit import pipeline

NIGHTLY = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "nightly_check.py"))
ROWS = list(range(50))


class KilledError(BaseException):
    """The run's process ended here."""


class Job:
    """A pipeline of the engine into a table of SQLite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = str(folder / "log")
        self.address = f"sqlite:///{folder / 'shop.db'}"

    def run(self) -> None:
        made = pipeline(
            "orders",
            store=open_store(self.store),
            backend=FileBackend(self.folder / "state"),
            restart=RestartStrategy.none(),
        )
        rows = made.source(SequenceSource(pa.table({"id": ROWS}), batch_rows=10), uid="in")
        rows.sink(SqlAlchemySink("table", url=self.address, table="orders", create_table=True))
        made.run()

    def die_before_a_commit(self) -> None:
        def die(step: Step) -> None:
            if step is Step.COMMIT_BEFORE:
                raise KilledError

        with hooked(die), pytest.raises(KilledError):
            self.run()

    def sql(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as database, database:
            return database.execute(statement).fetchall()

    def ids(self) -> list[int]:
        return sorted(number for (number,) in self.sql("SELECT id FROM orders"))

    @property
    def day(self) -> str:
        """On which the newest epoch was completed."""
        completed = operations.overview(operations.open_log(self.store)).epochs[0].completed
        assert completed is not None
        return completed[:10]

    def commit(self, minutes: float = 0.0) -> str:
        told: str = NIGHTLY["commit_in_doubt"](self.store, "sql:orders", self.address, timedelta(minutes=minutes))
        return told

    def audit(self, day: str) -> str:
        told: str = NIGHTLY["audit_epochs"](self.store, "table", "sql:orders", self.address, day)
        return told


@pytest.fixture
def dead_run(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_what_a_dead_run_has_decided_is_committed_once_and_the_pipeline_goes_on(dead_run: Job) -> None:
    dead_run.die_before_a_commit()
    assert dead_run.commit(minutes=5).endswith("was decided a moment ago")
    assert dead_run.ids() == []
    assert "committed 1 transactions of epoch" in dead_run.commit()
    assert dead_run.ids()
    assert dead_run.commit() == "nothing is in doubt"
    dead_run.run()
    assert dead_run.ids() == ROWS
    assert dead_run.audit(dead_run.day).endswith("are proven, 50 rows")


def test_an_audit_fails_if_a_row_was_changed_and_knows_the_days_of_epochs(dead_run: Job) -> None:
    dead_run.run()
    assert dead_run.audit("2001-01-01") == "no epoch of 2001-01-01 wrote rows"
    assert "are proven, 50 rows" in dead_run.audit(dead_run.day)
    dead_run.sql("UPDATE orders SET id = 1000 WHERE id = 7")
    with pytest.raises(RuntimeError, match="sql:orders: differs: epochs"):
        dead_run.audit(dead_run.day)


def test_a_scheduler_may_run_both_tasks_at_once(dead_run: Job, capsys: pytest.CaptureFixture[str]) -> None:
    dead_run.run()
    NIGHTLY["main"](dead_run.store, "table", "sql:orders", dead_run.address, dead_run.day)
    assert capsys.readouterr().out.startswith("nothing is in doubt\nsql:orders: epochs ")
