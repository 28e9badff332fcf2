"""A decision log in a database that is restored from a backup, around a heal: refused, or each row is there once.

The exceptions are those of docs/stores.md: what Kafka alone has committed, no target remembers.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from onceward.core.errors import EpochConflictError
from onceward.core.kit.crash_points import Step
from onceward.core.log import open_store

from .spark_kit import ids_in_table, ids_in_topic, make_table, once, prepared_in
from .torn_kit import ROWS, die_at, postgres_and_kafka, roll_back_by_hand

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
EPOCHS = 3


class BackedUp:
    """A torn pipeline whose decision log is in a database, and has backups."""

    def __init__(self, kind: str, folder: Path, servers: str, topic: str, dsn: str) -> None:
        self.folder, self.servers, self.topic, self.dsn = folder, servers, topic, dsn
        self.url = f"sqlite:///{folder}/log"
        if kind == "postgres":
            self.url = dsn.replace("postgresql://", "postgresql+psycopg://")
        make_table(dsn)
        self.connect()

    @property
    def kind(self) -> str:
        return self.url.partition(":")[0]

    def connect(self) -> None:
        store = open_store(self.url, pipeline=f"p-{self.topic}")
        self.torn = postgres_and_kafka(store, self.servers, self.topic, self.dsn)

    def back_up(self, name: str) -> None:
        if self.kind == "sqlite":
            shutil.copy(self.folder / "log", self.folder / name)
            return
        with psycopg.connect(self.dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE TABLE {} AS TABLE onceward_decision_log").format(sql.Identifier(name)))

    def restore(self, name: str) -> None:
        self.torn.store.close()  # type: ignore[attr-defined]
        if self.kind == "sqlite":
            shutil.copy(self.folder / name, self.folder / "log")
        else:
            with psycopg.connect(self.dsn, autocommit=True) as admin:
                admin.execute("TRUNCATE onceward_decision_log")
                admin.execute(sql.SQL("INSERT INTO onceward_decision_log TABLE {}").format(sql.Identifier(name)))
        self.connect()

    def tear(self, lost: str) -> None:
        """Epoch 1 is decided; one target commits what the other one loses, or each of them one share of two."""
        coordinator = self.torn.opened()
        self.torn.run(coordinator, 0)
        self.back_up("undecided")
        with die_at(Step.DECIDE_AFTER):
            self.torn.run(coordinator, 1)
        self.back_up("decided")
        named = self.torn.named()
        (first, second), (third, fourth) = named["table"], named["topic"]
        of_table = {"table": [first, second], "topic": [], "both": [first]}[lost]
        of_topic = {"table": [], "topic": [third, fourth], "both": [fourth]}[lost]
        self.torn.commit(*(c for c in (first, second, third, fourth) if c not in of_table + of_topic))
        self.torn.lose(*of_topic)
        roll_back_by_hand(self.dsn, *of_table)

    def heal(self, until: str) -> None:
        coordinator = self.torn.opened()
        if until == "written":
            with die_at(Step.LOG_PUT_BEFORE):
                self.torn.run(coordinator, 1)
            return
        with die_at(Step.LOG_PUT_AFTER):
            self.torn.run(coordinator, 1)
        self.back_up("replaced")
        if until == "half committed":
            with die_at(Step.COMMIT_AFTER):
                self.torn.opened()
        elif until != "replaced":
            self.torn.opened()
        if until == "followed":
            self.torn.run(self.torn.opened(), 2)
        self.back_up("newest")

    def go_on(self) -> None:
        """Start, heal what is to be healed, and write the epochs that are left."""
        coordinator = self.torn.opened()
        waiting = coordinator.lost.decision.epoch if coordinator.lost else coordinator.view.decided + 1
        for epoch in range(waiting, EPOCHS):
            self.torn.run(coordinator, epoch)
        self.torn.opened()  # what is of a START that the restored log had not come to is swept by a later one

    def ids(self) -> tuple[Counter[int], Counter[int]]:
        assert prepared_in(self.dsn) == 0
        return ids_in_table(self.dsn), ids_in_topic(self.servers, self.topic)


HEALS = ("written", "replaced", "half committed", "healed", "followed")
CASES = [
    (backup, lost, until)
    for backup in ("undecided", "decided", "replaced")
    for lost in ("topic", "table", "both")
    for until in HEALS
    if (backup, until) != ("replaced", "written")
]


def refuses(backup: str, lost: str, until: str) -> bool:
    """Whether the table has a commit that the restored log does not know."""
    if until == "followed":
        return True
    healed = until == "healed" and lost != "topic"
    return {"undecided": healed or lost != "table", "decided": healed, "replaced": False}[backup]


def twice(backup: str, lost: str, until: str) -> Counter[int]:
    """Rows that Kafka alone has committed by what the restored log does not know."""
    if refuses(backup, lost, until):
        return once(0)
    epoch = once(2 * ROWS) - once(ROWS)
    if backup == "undecided":
        return epoch  # the table lost all that it had, so only the topic has the epoch
    if backup == "decided" and lost != "table" and until in ("half committed", "healed"):
        return epoch if lost == "topic" else once(0) + type(epoch)(n for n in epoch if n % 2)
    return once(0)


BY_DAY = [
    ("undecided", "both", "replaced"),
    ("undecided", "table", "written"),
    ("decided", "table", "healed"),
    ("decided", "topic", "healed"),
    ("decided", "both", "replaced"),
    ("replaced", "both", "half committed"),
    ("replaced", "topic", "followed"),
]


@pytest.fixture(params=["sqlite", "postgres"])
def backed_up(
    request: pytest.FixtureRequest, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str], dsn: str
) -> Iterator[BackedUp]:
    job = BackedUp(request.param, tmp_path, kafka.bootstrap_servers, topic(), dsn)
    yield job
    job.torn.store.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("backup", "lost", "until"),
    [case if case in BY_DAY else pytest.param(*case, marks=pytest.mark.nightly) for case in CASES],
)
def test_a_log_that_is_restored_around_a_heal_is_refused_or_writes_each_row_once(
    backed_up: BackedUp, backup: str, lost: str, until: str
) -> None:
    backed_up.tear(lost)
    backed_up.heal(until)
    backed_up.restore(backup)
    if refuses(backup, lost, until):
        for _ in range(2):
            with pytest.raises(EpochConflictError, match="outdated copy: the ledger in the target database holds"):
                backed_up.go_on()
        if until == "written":
            return  # nobody has a newer log
        backed_up.restore("newest")  # what the message says
    backed_up.go_on()
    assert backed_up.ids() == (once(EPOCHS * ROWS), once(EPOCHS * ROWS) + twice(backup, lost, until))
