"""A driver that is killed in the middle of a heal, on a real Kafka broker and PostgreSQL server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import psycopg
import pytest

from onceward.core.kit.crash_points import CRASH_VARIABLE, Step
from onceward.core.log import open_store

from .spark_kit import ids_in_table, ids_in_topic, make_table, once, prepared_in
from .torn_kit import ROWS, Torn, postgres_and_kafka, roll_back_by_hand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onceward.core.contract.transaction import Committable
    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.slow]
EPOCHS = 3


class Driver:
    """Runs the pipeline in processes of their own, which may be killed."""

    def __init__(self, folder: Path, servers: str, topic: str, dsn: str, environment: dict[str, str]) -> None:
        self.store, self.servers, self.topic, self.dsn = f"sqlite:///{folder}/log", servers, topic, dsn
        self.environment = {**environment, "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(ROOT)])}
        make_table(dsn)

    @property
    def torn(self) -> Torn:
        store = open_store(self.store, pipeline=f"p-{self.topic}")
        return postgres_and_kafka(store, self.servers, self.topic, self.dsn)

    def run(self, kill: str = "", epochs: int = EPOCHS) -> bool:
        """Whether the process came to its end before it was killed at the step."""
        command = [sys.executable, "-m", "integration.torn_kit", self.store, self.servers, self.topic, self.dsn]
        killed = {CRASH_VARIABLE: kill} if kill else {}
        done = subprocess.run(
            [*command, str(epochs)],
            env={**self.environment, **killed},
            cwd=ROOT,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in ((0, -signal.SIGKILL) if kill else (0,)), done.stderr.decode()[-3000:]
        return done.returncode == 0

    def tear(self) -> None:
        """Epoch 1 is decided. Each target has committed one of its two shares, and lost the other."""
        assert not self.run(f"{Step.DECIDE_AFTER}:2", epochs=2)
        named = self.torn.named()
        self.torn.commit(named["topic"][0], named["table"][1])
        self.torn.lose(named["topic"][1])
        roll_back_by_hand(self.dsn, named["table"][0])

    def exact(self) -> None:
        """Each row is there once, and nothing is left."""
        assert ids_in_topic(self.servers, self.topic) == once(EPOCHS * ROWS)
        assert ids_in_table(self.dsn) == once(EPOCHS * ROWS)
        assert prepared_in(self.dsn) == 0
        assert "heal" in self.torn.actions()


ROOT = Path(__file__).parent.parent


@pytest.fixture
def driver(
    tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str], dsn: str, driver_environment: dict[str, str]
) -> Driver:
    return Driver(tmp_path, kafka.bootstrap_servers, topic(), dsn, driver_environment)


# In a process that heals, START is the first entry, and REPLACE the second one.
IN_TURN = (
    f"{Step.PRE_COMMIT_AFTER}:2",
    f"{Step.LOG_PUT_BEFORE}:2",
    f"{Step.LOG_PUT_AFTER}:2",
    f"{Step.COMMIT_BEFORE}:1",
    f"{Step.COMMIT_AFTER}:1",
    Step.COMPLETE_BEFORE,
)
POINTS = [step for step in Step if step.value.split(".")[0] not in ("wal", "abort")]


def test_a_driver_that_is_killed_in_each_part_of_a_heal_in_turn_writes_each_row_once(driver: Driver) -> None:
    driver.tear()
    killed = [step for step in IN_TURN if not driver.run(step)]
    driver.run()
    driver.exact()
    assert killed == list(IN_TURN)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 12))])
def test_a_driver_that_is_killed_at_four_points_of_its_heals_writes_each_row_once(driver: Driver, seed: int) -> None:
    """Whatever a kill has left of the decision is torn once more, before the next process starts."""
    random = Random(seed)
    driver.tear()
    for _ in range(4):
        driver.run(f"{random.choice(POINTS)}:{random.randint(1, 4)}")
        if (decision := driver.torn.view().undone) is not None and random.random() < 0.5:
            roll_back_by_hand(driver.dsn, *prepared_of(driver.dsn, random.sample(decision.committables, 2)))
    driver.run()
    driver.exact()


def prepared_of(dsn: str, named: Sequence[Committable]) -> list[Committable]:
    with psycopg.connect(dsn) as look:
        there = {gid for (gid,) in look.execute("SELECT gid FROM pg_prepared_xacts").fetchall()}
    return [committable for committable in named if committable.transaction in there]
