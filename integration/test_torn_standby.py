"""A standby that lags behind is promoted in the middle of a heal: real PostgreSQL servers and a real Kafka broker."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from onceward import KafkaSink, PostgresSink
from onceward.core.checkpoint import Admission, OnLost
from onceward.core.errors import DataLossError
from onceward.core.kit.crash_points import Step
from onceward.core.log import MemoryStore

from .postgres_kit import running_server, running_standby
from .spark_kit import ids_in_topic, once
from .standby_kit import QUIET, Pair
from .torn_kit import ROWS, Torn, die_at, input_of, roll_back_by_hand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.slow]


class TornPair:
    """Epoch 1 is in the topic; the table's part of it is to be written again, and its server has a standby."""

    knew_epoch_0 = True

    def __init__(self, pair: Pair, kafka: KafkaServer, topic: str) -> None:
        self.pair, self.servers, self.topic = pair, kafka.bootstrap_servers, topic
        self.torn = Torn(
            MemoryStore(),
            f"p-{topic}",
            PostgresSink("table", dsn=pair.dsn, table="words", commit="prepared"),
            KafkaSink("topic", bootstrap_servers=self.servers, topic=topic),
        )

    def lag(self) -> None:
        """From now on the standby gets nothing more."""
        self.pair.catch_up()
        self.pair.standby.stop()

    def fail_over(self) -> None:
        self.pair.fail_over()

    def exact(self, epochs: int = 3) -> None:
        assert self.pair.rows() == list(range(epochs * ROWS))
        assert self.pair.left() == (0, 0)
        assert ids_in_topic(self.servers, self.topic) == once(epochs * ROWS)


@pytest.fixture
def torn_pair(kafka: KafkaServer, topic: Callable[..., str]) -> Iterator[TornPair]:
    with running_server(**QUIET) as primary, running_standby(primary, **QUIET) as standby, ExitStack() as opened:
        yield TornPair(Pair(primary, standby, opened), kafka, topic())


@pytest.mark.parametrize(
    "last",
    [
        "the lost transactions",
        pytest.param("their loss", marks=pytest.mark.nightly),
        pytest.param("all that was prepared again", marks=pytest.mark.nightly),
        "one of two commits",
    ],
)
def test_a_standby_promoted_in_the_middle_of_a_heal_gets_each_row_once(torn_pair: TornPair, last: str) -> None:
    """The last that it has: it may still show as prepared what was lost, and lack what replaced it."""
    named = torn_pair.torn.waiting()
    torn_pair.torn.commit(*named["topic"])
    if last == "the lost transactions":
        torn_pair.lag()
    roll_back_by_hand(torn_pair.pair.primary.dsn, *named["table"])
    if last == "their loss":
        torn_pair.lag()
    coordinator = torn_pair.torn.opened()

    with die_at(Step.LOG_PUT_AFTER):
        assert coordinator.admit(1, input_of(1)) is Admission.HEAL
        torn_pair.torn.run(coordinator, 1)
    if last == "all that was prepared again":
        torn_pair.lag()
    if last == "one of two commits":
        torn_pair.torn.commit(torn_pair.torn.named()["table"][0])
        torn_pair.lag()
        torn_pair.torn.commit(torn_pair.torn.named()["table"][1])
    torn_pair.fail_over()
    for epoch in (1, 2):
        torn_pair.torn.run(torn_pair.torn.opened(), epoch)
    torn_pair.exact()
    assert set(torn_pair.torn.actions()) == {"heal"}


def replay(job: TornPair) -> None:
    for epoch in (1, 2):
        job.torn.run(job.torn.opened(), epoch)
    job.exact()


def skip(job: TornPair) -> None:
    job.torn.opened(OnLost.SKIP)
    for epoch in (2, 3):
        job.torn.run(job.torn.opened(), epoch)
    lost = set(range(ROWS, 2 * ROWS)) if job.knew_epoch_0 else set(range(2 * ROWS))
    assert job.pair.rows() == sorted(set(range(4 * ROWS)) - lost)
    assert ids_in_topic(job.servers, job.topic) == once(4 * ROWS)
    assert "skip" in job.torn.actions()


def rewind(job: TornPair) -> None:
    """It writes again what comes after it: also into the topic, which has it."""
    first = 1 if job.knew_epoch_0 else 0
    coordinator = job.torn.back(first, "the standby lagged")
    for epoch in range(first, 3):
        job.torn.run(coordinator, epoch)
    assert job.pair.rows() == list(range(3 * ROWS))
    twice = once(2 * ROWS) - once(first * ROWS)
    assert ids_in_topic(job.servers, job.topic) == once(3 * ROWS) + twice


@pytest.mark.parametrize(
    ("choice", "knew_epoch_0"),
    [
        (replay, True),
        pytest.param(skip, True, marks=pytest.mark.nightly),
        pytest.param(rewind, True, marks=pytest.mark.nightly),
        pytest.param(skip, False, marks=pytest.mark.nightly),
        (rewind, False),
    ],
)
def test_what_the_error_offers_after_such_a_promotion_leads_on(
    torn_pair: TornPair, choice: Callable[[TornPair], None], knew_epoch_0: bool
) -> None:
    torn_pair.knew_epoch_0 = knew_epoch_0
    if not knew_epoch_0:
        torn_pair.lag()
    named = torn_pair.torn.waiting()
    if knew_epoch_0:
        torn_pair.lag()
    torn_pair.torn.commit(*named["topic"])
    roll_back_by_hand(torn_pair.pair.primary.dsn, *named["table"])
    coordinator = torn_pair.torn.opened()
    with die_at(Step.LOG_PUT_AFTER):
        torn_pair.torn.run(coordinator, 1)
    torn_pair.fail_over()
    for _ in range(2):
        with pytest.raises(DataLossError) as lost:
            torn_pair.torn.opened(OnLost.FAIL)
    said = str(lost.value).partition("Choices: ")[2]
    offered = {replay: "on_lost='replay'", skip: "on_lost='skip'", rewind: "rewind='why'"}
    assert {word for word in offered.values() if word in said} == {
        word for one, word in offered.items() if knew_epoch_0 or one is not replay
    }
    choice(torn_pair)
    assert torn_pair.pair.left() == (0, 0)
