"""A run that was paused before PREPARE and wakes beside its successor holds no locks for as long as that one lives."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.engine_kit import Slowly, reach

from onceward import PostgresSink
from onceward.core import CheckpointConfig, Pipeline, RestartStrategy
from onceward.core.checkpoint import CommitPolicy
from onceward.core.errors import FencedError
from onceward.sources import SequenceSource

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.postgres
ROWS = [{"id": n} for n in range(100)]


class Paused(PostgresSink):
    """Waits before PREPARE TRANSACTION until it may go on."""

    def __init__(self, **options: Any) -> None:
        super().__init__("numbers", **options)
        self.reached, self.may_go_on = threading.Event(), threading.Event()

    def pre_commit(self, transaction: Any) -> Any:
        self.reached.set()
        assert self.may_go_on.wait(60)
        return super().pre_commit(transaction)


def prepared(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [gid for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall()]


def run_of(source: Any, sink: PostgresSink, folder: Path) -> Any:
    p = Pipeline(
        "swept",
        store=f"file://{folder}",
        checkpointing=CheckpointConfig(interval=0.2),
        restart=RestartStrategy.none(),
    )
    p.setup = p.setup._replace(policy=CommitPolicy(sweep_every=1.0))
    p.source(source, uid="source").sink(sink)
    return p


def test_12_what_a_fenced_run_prepares_late_is_swept_by_the_run_that_fenced_it(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE numbers (id bigint)")
    options: dict[str, Any] = {"dsn": dsn, "table": "numbers", "commit": "prepared"}
    old_source, old_sink = Slowly(ROWS, batch_rows=10), Paused(**options)
    old = run_of(old_source, old_sink, tmp_path / "log")
    reach(old_source, old.start(), 1)
    assert old_sink.reached.wait(30)
    new_source = Slowly(ROWS, batch_rows=10)
    new = run_of(new_source, PostgresSink("numbers", **options), tmp_path / "log")
    job = new.start()
    reach(new_source, job, 2)
    job.checkpoint(timeout=30)
    old_sink.may_go_on.set()
    with pytest.raises(FencedError):
        old.wait(30)
    [gid] = prepared(dsn)
    assert ":0:" in gid  # of the first START
    began = time.monotonic()
    while prepared(dsn):
        assert time.monotonic() - began < 20
        time.sleep(0.1)
    new_source.let(100)
    assert new.wait(30)
    run_of(SequenceSource(ROWS, batch_rows=10), PostgresSink("numbers", **options), tmp_path / "log").run()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM numbers").fetchone() == (100, 100)
