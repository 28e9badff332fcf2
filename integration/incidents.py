"""Incidents of a running pipeline, each played on real services: what happens, what `status` says first, what ends it.

docs/operations.md shows them as a table; test_incidents.py plays each and compares what was said with what is here.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceward.core.kit.crash_points import CRASH_VARIABLE, Step

from .disk_kit import Disk, mounted
from .kafka_kit import read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onceward.testing.services import KafkaServer, PostgresServer

JOB: Final = Path(__file__).with_name("incident_job.py")
ROWS: Final = 10
"""Rows of each part of the input."""
PATIENCE: Final = 90.0
"""Seconds for which something is waited for."""


class Scene:
    """A pipeline with a topic and a table of its own, and what a person on call does at a shell.

    Args:
        kafka: The broker that it reads from and writes to.
        postgres: The server of its table.
        dsn: The database of its table.
        folder: Its decision log lies in here.
    """

    def __init__(self, kafka: KafkaServer, postgres: PostgresServer, dsn: str, folder: Path) -> None:
        self.kafka, self.postgres, self.folder = kafka, postgres, folder
        self.name = f"orders-{uuid.uuid4().hex[:8]}"
        self.table = self.name.replace("-", "_")
        self.store = folder / "log"
        self.settings = {
            "SERVERS": kafka.bootstrap_servers,
            "DSN": dsn,
            "TOPIC_IN": f"in-{self.name}",
            "TOPIC_OUT": f"out-{self.name}",
            "TABLE": self.table,
            "NAME": self.name,
            "STORE": str(self.store),
        }
        self.drivers: list[subprocess.Popen[bytes]] = []
        self.disk: Disk | None = None
        self._open = ExitStack()
        self.fed = 0
        self.create_table()
        self.create_topics()
        self.feed()

    def create_topics(self, *names: str) -> None:
        """Create both topics, or these."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        topics = names or (self.settings["TOPIC_IN"], self.settings["TOPIC_OUT"])
        for made in admin.create_topics([NewTopic(name, 1) for name in topics]).values():
            made.result(timeout=PATIENCE)

    def create_table(self) -> None:
        """Create the table."""
        self.sql(f"CREATE TABLE {self.table} (n bigint)")

    def sql(self, text: str) -> list[tuple[int]]:
        """Run a statement in the table's database."""
        with psycopg.connect(self.settings["DSN"], autocommit=True) as connection:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []

    def feed(self) -> None:
        """Write the next rows of the input."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for number in range(self.fed, self.fed + ROWS):
            producer.produce(self.settings["TOPIC_IN"], value=str(number))
        assert producer.flush(PATIENCE) == 0
        self.fed += ROWS

    def start(self, *under: str, **settings: str) -> subprocess.Popen[bytes]:
        """Start the driver, under a supervisor's command if one is given."""
        with (self.folder / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                [*under, sys.executable, str(JOB)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.settings, **settings},
                cwd=self.folder,
            )
        self.drivers.append(driver)
        return driver

    def supervised(self, *, delay: str, **settings: str) -> subprocess.Popen[bytes]:
        """Start the driver by `onceward run`."""
        strategy = ("--restart", "fixed-delay", "--setting", f"delay={delay}", "--setting", "attempts=20")
        return self.start(*self.onceward("run", *strategy, "--"), **settings)

    def with_log_on_a_small_disk(self) -> Disk:
        """Let the decision log lie on a disk that can be filled."""
        self.disk = self._open.enter_context(mounted(self.folder / "disk", "4m"))
        self.store = self.disk.folder / "log"
        self.settings["STORE"] = str(self.store)
        return self.disk

    @staticmethod
    def onceward(*words: str) -> list[str]:
        """Make a command line."""
        return [str(Path(sys.executable).with_name("onceward")), *words]

    def wait(self, what: Callable[[], bool]) -> None:
        """Wait until something is true."""
        deadline = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < deadline, (self.folder / "driver.log").read_text()[-4000:]
            time.sleep(0.1)

    def written(self, many: int | None = None) -> None:
        """Wait until the table has the rows of the input."""
        self.wait(lambda: self.sql(f"SELECT count(*) FROM {self.table}")[0][0] >= (many or self.fed))

    def settled(self) -> None:
        """Wait until the table has the rows, and their epoch is completed: then the topic has them, too."""
        self.written()
        self.wait(lambda: len(self.messages()) >= self.fed)

    def messages(self) -> list[int]:
        """Return the numbers in the topic, as its readers see them."""
        seen = read_all(self.kafka.bootstrap_servers, self.settings["TOPIC_OUT"])
        return sorted(int(message.value()) for message in seen)

    def says(self, *words: str) -> tuple[str, int, float]:
        """Ask `onceward status`. Returns its output, its exit code, and after how many seconds it was there."""
        began = time.monotonic()
        done = self.run(self.onceward("status", "--store", str(self.store), *words))
        return done.stdout + done.stderr, done.returncode, time.monotonic() - began

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command of an operator."""
        wide = {**os.environ, "COLUMNS": "400"}
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=wide)

    def copied(self) -> str:
        """Run the command that `status` shows, as it is, with the database's login. Returns what it says."""
        said, _, _ = self.says()
        [command] = re.findall(r"(onceward (?:txn|doctor|run|status|checkpoints) .*)$", said, re.MULTILINE)[:1]
        words = [self._with_login(word) for word in shlex.split(command)[1:]]
        done = self.run(self.onceward(*words))
        return done.stdout + done.stderr

    def _with_login(self, word: str) -> str:
        return f"postgres={self.settings['DSN']}" if word.startswith("postgres=") else word

    def is_exact(self) -> bool:
        """Return whether each row of the input is in the topic and in the table once."""
        rows = sorted(number for (number,) in self.sql(f"SELECT n FROM {self.table}"))
        return rows == self.messages() == list(range(self.fed))

    def end(self) -> None:
        """End what runs, and bring the services back."""
        self.kafka.resume()
        self.postgres.resume()
        self.end_drivers()
        self._open.close()

    def end_drivers(self) -> None:
        """End every driver; one that may clean up is asked to."""
        for driver in self.drivers:
            if driver.poll() is None:
                driver.terminate()
            try:
                driver.wait(20)
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()


@dataclasses.dataclass(frozen=True)
class Incident:
    """One incident.

    Attributes:
        title: What happened, as the page has it.
        says: Regular expression for what the first line says after the pipeline's name.
        shown: The same as a reader sees it.
        code: Exit code of `status`.
        done: What ends it, as the page has it.
        happens: Makes it happen.
        ends: Does what ends it; afterwards all rows are there.
        patience: Seconds after which the first line must have said so.
    """

    title: str
    says: str
    shown: str
    code: int
    done: str
    happens: Callable[[Scene], None]
    ends: Callable[[Scene], None]
    patience: float = 15.0


def _dies_after_the_decision(scene: Scene) -> None:
    assert scene.start(**{CRASH_VARIABLE: Step.COMMIT_BEFORE.value}).wait(PATIENCE) == -signal.SIGKILL
    time.sleep(31)  # younger than that, a decision may be one that is being committed


def _committed_by_hand(scene: Scene) -> None:
    said = scene.copied()
    assert "committed" in said, said
    scene.start()
    scene.settled()


def _starts(scene: Scene) -> None:
    scene.start()
    scene.settled()


def _commits_by_hand_first(scene: Scene) -> None:
    _dies_after_the_decision(scene)
    scene.copied()


def _broker_freezes(scene: Scene) -> None:
    scene.start()
    scene.settled()
    scene.kafka.pause()


def _broker_answers(scene: Scene) -> None:
    scene.kafka.resume()
    scene.feed()
    _starts(scene)


def _database_is_down_after_the_decision(scene: Scene) -> None:
    assert scene.start(**{CRASH_VARIABLE: Step.COMMIT_BEFORE.value}).wait(PATIENCE) == -signal.SIGKILL
    scene.postgres.kill()
    assert scene.start().wait(PATIENCE) != 0
    time.sleep(20)


def _database_is_back(scene: Scene) -> None:
    scene.postgres.start_again()
    scene.start()
    scene.settled()


def _table_is_dropped(scene: Scene) -> None:
    scene.start()
    scene.settled()
    scene.sql(f"ALTER TABLE {scene.table} RENAME TO {scene.table}_saved")
    scene.feed()
    scene.wait(lambda: scene.drivers[-1].poll() is not None)


def _table_is_back(scene: Scene) -> None:
    said = scene.copied()
    assert f"table ({scene.table}): it does not exist" in said, said
    scene.sql(f"ALTER TABLE {scene.table}_saved RENAME TO {scene.table}")
    scene.start()
    scene.settled()


def _record_is_bad(scene: Scene) -> None:
    scene.start(BAD="3").wait(PATIENCE)


def _function_hangs(scene: Scene) -> None:
    """After several epochs, whose pace tells what is late."""
    scene.start(HANG=str(5 * ROWS + 3))
    scene.settled()
    for _ in range(4):
        scene.feed()
        scene.settled()
    scene.feed()


def _hanging_driver_is_killed(scene: Scene) -> None:
    scene.drivers[-1].kill()
    _starts(scene)


def _is_killed_under_its_supervisor(scene: Scene) -> None:
    scene.supervised(delay="30")
    scene.settled()
    [driver] = psutil.Process(scene.drivers[-1].pid).children()
    driver.kill()
    scene.feed()
    time.sleep(1)


def _supervisor_starts_it(scene: Scene) -> None:
    scene.settled()


def _fails_again_and_again(scene: Scene) -> None:
    scene.supervised(delay="2", BAD="3")


def _is_corrected(scene: Scene) -> None:
    scene.end_drivers()
    _starts(scene)


def _disk_of_the_log_is_full(scene: Scene) -> None:
    disk = scene.with_log_on_a_small_disk()
    scene.start()
    scene.settled()
    disk.fill()
    scene.feed()
    scene.wait(lambda: scene.drivers[-1].poll() is not None)


def _there_is_room(scene: Scene) -> None:
    assert scene.disk is not None
    scene.disk.make_room()
    _starts(scene)


def _entry_is_damaged(scene: Scene) -> None:
    scene.start()
    scene.settled()
    scene.end_drivers()
    scene.feed()
    newest = max(file for file in scene.store.iterdir() if file.name.isdigit())
    shutil.copy(newest, scene.folder / "backup")
    newest.write_bytes(newest.read_bytes()[:-20])


def _entry_is_restored(scene: Scene) -> None:
    said = scene.copied()
    assert "damaged" in said, said
    shutil.copy(scene.folder / "backup", max(file for file in scene.store.iterdir() if file.name.isdigit()))
    _starts(scene)


def _is_stopped(scene: Scene) -> None:
    scene.start()
    scene.settled()
    scene.drivers[-1].send_signal(signal.SIGTERM)
    scene.drivers[-1].wait(PATIENCE)
    scene.feed()


def _is_started_twice(scene: Scene) -> None:
    scene.start()
    scene.settled()
    scene.start()
    scene.feed()
    scene.wait(lambda: scene.drivers[0].poll() is not None)
    scene.settled()


def _nothing(scene: Scene) -> None:
    scene.settled()


def _comes_too_late(scene: Scene) -> None:
    settings = {CRASH_VARIABLE: Step.COMMIT_BEFORE.value, "TIMEOUT": "5"}
    assert scene.start(**settings).wait(PATIENCE) == -signal.SIGKILL
    time.sleep(31)


INCIDENTS: Final = (
    Incident(
        "The driver is killed after a decision",
        r"waiting; epoch \d+ is decided and has waited for .+ for its commit: \d+ rows for table, \d+ rows for topic, "
        r"some of which expire in at most \d+:\d\d min",
        "waiting; epoch 1 is decided and has waited for 32 s for its commit: 10 rows for table, 10 rows for topic, "
        "some of which expire in at most 14:28 min",
        1,
        "the copied `onceward txn commit`, then a start",
        _dies_after_the_decision,
        _committed_by_hand,
    ),
    Incident(
        "The same",
        r"waiting; epoch \d+ is decided",
        "the same",
        1,
        "a start",
        _dies_after_the_decision,
        _starts,
    ),
    Incident(
        "The same, and the commit came after Kafka's transaction timeout",
        r"waiting; epoch \d+ is decided .+, some of which may have expired",
        "waiting; epoch 1 is decided and has waited for 31 s for its commit: 10 rows for table, 10 rows for topic, "
        "some of which may have expired",
        1,
        "a start, which writes the lost rows again",
        _comes_too_late,
        _starts,
    ),
    Incident(
        "An operator has committed, and nobody has started it",
        r"failed; committed by hand \(onceward txn commit\) .+ ago; no run since",
        "failed; committed by hand (onceward txn commit) 3 s ago; no run since",
        1,
        "a start",
        _commits_by_hand_first,
        _starts,
    ),
    Incident(
        "The broker hangs",
        r"failed; the last run failed: .*no broker answers at .+",
        "failed; the last run failed: cannot look up orders: no broker answers at broker:9092 …",
        1,
        "the broker goes on, and a start",
        _broker_freezes,
        _broker_answers,
        150.0,
    ),
    Incident(
        "The database is killed after a decision",
        r"waiting; epoch \d+ is decided .+; the last failure: .+",
        "waiting; epoch 1 is decided and has waited for 45 s for its commit: 10 rows for table, …; the last failure: …",
        1,
        "the database and the pipeline are started",
        _database_is_down_after_the_decision,
        _database_is_back,
        60.0,
    ),
    Incident(
        "A table is gone",
        r"failed; the last run failed: .*does not exist",
        "failed; the last run failed: … table public.paid does not exist …",
        1,
        "the copied `onceward doctor` names the table; it is restored, and a start",
        _table_is_dropped,
        _table_is_back,
    ),
    Incident(
        "A function fails on a record",
        r"failed; the last run failed: .*bad record 3",
        "failed; the last run failed: operator parse, subtask 0: ValueError: bad record 3; at …",
        1,
        "the function is corrected, and a start",
        _record_is_bad,
        _starts,
    ),
    Incident(
        "A function hangs",
        r"silent; nothing was written for .+",
        "silent; nothing was written for 1:01 min, 120 times its usual pace of 0.5 s",
        1,
        "the driver is killed, and a start",
        _function_hangs,
        _hanging_driver_is_killed,
        180.0,
    ),
    Incident(
        "`onceward run` has to start a killed driver again",
        r"restarting; starting again (in|since) .+ after exit code 137 \(1st time\)",
        "restarting; starting again in 28 s after exit code 137 (1st time)",
        0,
        "nothing",
        _is_killed_under_its_supervisor,
        _supervisor_starts_it,
    ),
    Incident(
        "`onceward run` starts it in vain",
        r"restarting; started \d+ times in .+; the last failure: .*bad record 3",
        "restarting; started 3 times in 12 s; the last exit code: 1; the last failure: … bad record 3 …; onceward run "
        "starts it again in 1 s",
        1,
        "the function is corrected, and a start",
        _fails_again_and_again,
        _is_corrected,
        60.0,
    ),
    Incident(
        "The disk of the decision log is full",
        r"failed; the disk of its decision log is full",
        "failed; the disk of its decision log is full (0 bytes are left), so nothing can be decided",
        1,
        "room, and a start",
        _disk_of_the_log_is_full,
        _there_is_room,
    ),
    Incident(
        "An entry of the decision log is damaged",
        r"unreadable; entry \d+ of the decision log is damaged",
        "unreadable; entry 7 of the decision log is damaged …",
        1,
        "the copied `onceward doctor` names the entry; it is restored from a copy, and a start",
        _entry_is_damaged,
        _entry_is_restored,
    ),
    Incident(
        "It was stopped",
        r"ended; the last run .+",
        "ended; the last run was stopped",
        0,
        "a start, when wanted",
        _is_stopped,
        _starts,
    ),
    Incident(
        "It was started twice",
        r"running; .+",
        "running; the last epoch was completed 1 s ago",
        0,
        "nothing: the older run has ended with a `FencedError`",
        _is_started_twice,
        _nothing,
    ),
)


def table() -> str:
    """Return the table for docs/operations.md."""
    head = "| what happens | the first line of `onceward status` | exit code | what ends it |\n|---|---|---|---|\n"
    shown = {each.title: each.shown if each.shown == "the same" else f"`{each.shown}`" for each in INCIDENTS}
    return head + "".join(f"| {each.title} | {shown[each.title]} | {each.code} | {each.done} |\n" for each in INCIDENTS)
