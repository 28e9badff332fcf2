"""Torn epochs whose lost part is of a real MariaDB server: XA transactions and staged rows, in number."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from onceward import KafkaSink, SqlAlchemySink
from onceward.connectors.database.mariadb import Xid
from onceward.core.contract.names import parse_transaction_name
from onceward.core.kit.crash_points import Step
from onceward.core.log import MemoryStore

from .mariadb_kit import PROGRAM, running_mariadb
from .postgres_kit import WORDS
from .spark_kit import ids_in_topic, once
from .sql_kit import MariaDatabase, maria_database
from .torn_kit import Torn, die_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from onceward.core.contract.transaction import Committable
    from onceward.testing.services import KafkaServer

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.tables(WORDS),
    pytest.mark.skipif(PROGRAM is None, reason="MariaDB's server is not installed"),
]
EPOCHS = 4


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    with running_mariadb() as running:
        yield running.url


@pytest.fixture
def new_database(server_url: str) -> AbstractContextManager[MariaDatabase]:
    return maria_database(server_url)


def roll_back_by_hand(database: MariaDatabase, committable: Committable) -> None:
    """As an operator would: by XA ROLLBACK, or by deleting the rows that wait."""
    if committable.transaction in staged(database):
        database.run(f"DELETE FROM onceward_staged WHERE name = '{committable.transaction}'")
        return
    name = parse_transaction_name(committable.transaction)
    assert name is not None
    database.run(f"XA ROLLBACK {Xid.of(name)}")


def staged(database: MariaDatabase) -> list[str]:
    return [name for (name,) in database.run("SELECT name FROM onceward_staged")]


def tear(torn: Torn, database: MariaDatabase, random: Random) -> None:
    """End some of the table's transactions by hand, and commit some of the others and of the topic's, in any order."""
    named = torn.named()
    random.shuffle(named["table"])
    lost = named["table"][: random.randint(1, 2)]
    other = [c for c in named["table"] if c not in lost] + named["topic"]
    torn.commit(*random.sample(other, random.randint(1, len(other))))
    for committable in lost:
        roll_back_by_hand(database, committable)


@pytest.mark.parametrize("how", ["prepared", "staging", "upsert"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 12))])
def test_torn_epochs_of_mariadb_are_healed_with_each_row_once(
    database: MariaDatabase, kafka: KafkaServer, topic: Callable[..., str], how: str, seed: int
) -> None:
    """In each epoch the driver dies after the decision, and perhaps once more in the heal."""
    random = Random(f"{how} {seed}")
    name = topic()
    settings = {"key": ["id"]} if how == "upsert" else {"commit": how}
    torn = Torn(
        MemoryStore(),
        f"p-{name}",
        SqlAlchemySink("table", url=database.url, table="words", **settings),
        KafkaSink("topic", bootstrap_servers=kafka.bootstrap_servers, topic=name),
    )
    for epoch in range(EPOCHS):
        coordinator = torn.opened()
        with die_at(Step.DECIDE_AFTER):
            torn.run(coordinator, epoch)
        tear(torn, database, random)
        if dies := random.choice(
            [None, Step.LOG_PUT_BEFORE, Step.LOG_PUT_AFTER, Step.COMMIT_AFTER, Step.COMPLETE_BEFORE]
        ):
            coordinator = torn.opened()
            with die_at(dies):
                torn.run(coordinator, epoch)
        torn.run(torn.opened(), epoch)
    assert sorted(row[0] for row in database.rows()) == list(range(EPOCHS * torn.rows))
    assert ids_in_topic(kafka.bootstrap_servers, name) == once(EPOCHS * torn.rows)
    assert torn.actions() == ["heal"] * EPOCHS
    assert database.prepared() == []
    assert staged(database) == []
