"""A driver dies with SIGKILL, and an operator ends what it left in Kafka and PostgreSQL, from a shell alone."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from onceward import KafkaSink, PostgresSink
from onceward.cli.main import EXIT_FAILED, EXIT_MISUSED, app
from onceward.core.errors import ConfigurationError
from onceward.core.kit.crash_points import Step

from .kafka_kit import eventually, read_all, rows
from .postgres_kit import expected, in_child, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

EPOCH = """
from onceward.core.checkpoint import Coordinator
from onceward.core.log import DirectoryStore, EpochInput
from onceward.core.kit.crash_points import hooked, kill_at
from onceward.core.contract.transaction import Acknowledgement

pipeline, checkpoint, batches, step = arguments
coordinator = Coordinator(pipeline, DirectoryStore(checkpoint), [sink for sink, _ in batches])
coordinator.open()
about = EpochInput(query="q", end=0)
coordinator.admit(0, about)
committables = []
for sink, batch in batches:
    sink.validate(batch.schema)
    transaction = sink.begin(coordinator.context(sink.name, 0, subtask=0))
    sink.write(transaction, batch)
    committables.append(sink.pre_commit(transaction))
names = tuple(sink.name for sink, _ in batches)
ack = Acknowledgement(epoch=0, subtask=0, attempt=0, sinks=names, committables=tuple(committables))
if step:
    with hooked(kill_at(step)):
        coordinator.commit(0, [ack], about)
coordinator.commit(0, [ack], about)
"""


class Job:
    """A pipeline with a topic, a table for inserts and one for upserts."""

    def __init__(self, servers: str, topic: str, dsn: str, folder: Path) -> None:
        self.servers, self.topic, self.dsn, self.checkpoint = servers, topic, dsn, folder / "checkpoint"
        self.pipeline = f"orders-{uuid.uuid4().hex[:8]}"
        self.look = psycopg.connect(dsn, autocommit=True)
        for table in ("inserted", "upserted"):
            self.look.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, word text)")
        self.batches = [
            (KafkaSink("messages", bootstrap_servers=servers, topic=topic), rows("a", "b")),
            (PostgresSink("inserts", dsn=dsn, table="inserted", commit="prepared"), words(1)),
            (PostgresSink("upserts", dsn=dsn, table="upserted", key=["id"]), words(1)),
        ]

    def epoch(self, step: Step | None = None) -> None:
        """In a process of its own, which dies at the step."""
        in_child(EPOCH, self.pipeline, str(self.checkpoint), self.batches, str(step.value) if step else "")

    def line(self, *arguments: str) -> list[str]:
        where = ["--at", f"kafka={self.servers}", "--at", f"postgres={self.dsn}", "--pipeline", self.pipeline]
        return ["txn", *arguments, *where]

    def txn(self, *arguments: str, code: int = 0) -> str:
        """In this process: a new one takes most of a second."""
        done = CliRunner().invoke(app, self.line(*arguments))
        if isinstance(done.exception, ConfigurationError):
            assert code == EXIT_MISUSED
            return str(done.exception)
        assert done.exit_code == code, (done.output, done.exception)
        return done.stdout if not code else done.stderr

    def listed(self, *arguments: str) -> dict[str, Any]:
        """By sink."""
        return {one["sink"]: one for one in json.loads(self.txn("list", "--json", *arguments))}

    @property
    def known(self) -> tuple[str, str]:
        return "--store", str(self.checkpoint)

    def shown(self) -> tuple[list[bytes], list[Any], list[Any]]:
        tables = [sorted(self.look.execute(f"SELECT * FROM {name}").fetchall()) for name in ("inserted", "upserted")]
        return [m.value() for m in read_all(self.servers, self.topic)], tables[0], tables[1]


MAIN = "from onceward.cli.main import main; main()"
NOTHING: Any = ([], [], [])
ALL = ([b"a", b"b"], expected(1), expected(1))


@pytest.fixture
def dying_job(kafka: KafkaServer, topic: Callable[..., str], dsn: str, tmp_path: Path) -> Iterator[Job]:
    made = Job(kafka.bootstrap_servers, topic(), dsn, tmp_path)
    with made.look:
        yield made


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(Step.DECIDE_AFTER, marks=pytest.mark.nightly),
        Step.COMMIT_AFTER,
        pytest.param(Step.COMPLETE_BEFORE, marks=pytest.mark.nightly),
    ],
)
def test_what_was_decided_is_committed_from_a_shell_once(dying_job: Job, step: Step) -> None:
    dying_job.epoch(step)
    before = dying_job.shown()
    listed = dying_job.listed(*dying_job.known)
    assert {one["status"] for one in listed.values()} == {"decided"}
    assert {sink: one["rows"] for sink, one in listed.items()} == {"messages": 2, "inserts": 3, "upserts": 3}
    states = {Step.DECIDE_AFTER: {"prepared"}, Step.COMPLETE_BEFORE: {"committed"}}
    assert listed["messages"]["state"] in states.get(step, {"prepared", "committed"})  # targets commit side by side
    assert "would commit epoch 0" in dying_job.txn("commit", *dying_job.known)
    assert dying_job.shown() == before
    assert "committed transactions: 3" in dying_job.txn("commit", "--yes", *dying_job.known)
    assert dying_job.shown() == ALL
    assert "nothing to commit" in dying_job.txn("commit", "--yes", *dying_job.known)
    assert dying_job.listed(*dying_job.known) == {}


def test_what_is_in_doubt_is_aborted_from_a_shell_and_the_next_run_writes_it_once(dying_job: Job) -> None:
    dying_job.epoch(Step.ACKNOWLEDGED)
    listed = dying_job.listed(*dying_job.known)
    assert {sink: one["status"] for sink, one in listed.items()} == dict.fromkeys(
        ("messages", "inserts", "upserts"), "in doubt"
    )
    assert "would abort 3" in dying_job.txn("abort", *dying_job.known)
    assert len(dying_job.listed(*dying_job.known)) == 3
    one = listed["inserts"]["transaction"]
    assert "aborted 1 of 1" in dying_job.txn("abort", one, "--yes", *dying_job.known)
    assert {sink: one["status"] for sink, one in dying_job.listed(*dying_job.known).items()} == dict.fromkeys(
        ("messages", "upserts"), "lingering"
    )
    assert "aborted 2 of 2" in dying_job.txn("abort", "--yes", *dying_job.known)
    assert (dying_job.listed(*dying_job.known), dying_job.shown()) == ({}, NOTHING)
    dying_job.epoch()
    assert dying_job.shown() == ALL


def test_what_nobody_knows_any_more_is_found_by_its_name_and_ended(dying_job: Job) -> None:
    dying_job.epoch(Step.ACKNOWLEDGED)
    shutil.rmtree(dying_job.checkpoint)
    listed = dying_job.listed()
    assert {one["status"] for one in listed.values()} == {"log not given"}
    names = [one["transaction"] for one in listed.values()]
    assert dying_job.pipeline in dying_job.txn("inspect", names[0])
    assert "needs the names" in dying_job.txn("abort", "--orphaned", "--yes", code=2)
    assert "--store, once" in dying_job.txn("abort", *names, "--yes", code=2)
    assert len(dying_job.listed()) == 3
    assert "aborted 3 of 3" in dying_job.txn("abort", *names, "--orphaned", "--yes")
    assert (dying_job.listed(), dying_job.shown()) == ({}, NOTHING)


def test_a_target_that_does_not_answer_is_one_message(dying_job: Job) -> None:
    dying_job.epoch(Step.DECIDE_AFTER)
    dying_job.servers = "localhost:1"
    command = [sys.executable, "-c", MAIN, *dying_job.line("list", *dying_job.known)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == EXIT_FAILED
    assert "Traceback" not in done.stderr
    assert "localhost:1" in done.stderr


def test_the_time_that_is_left_is_told_until_kafka_has_ended_the_transaction(dying_job: Job) -> None:
    """A driver that was killed after its decision, whose transaction Kafka ends meanwhile."""
    sink = KafkaSink("messages", bootstrap_servers=dying_job.servers, topic=dying_job.topic, transaction_timeout=20)
    dying_job.batches = [(sink, rows("a", "b"))]
    dying_job.epoch(Step.DECIDE_AFTER)
    left = dying_job.listed(*dying_job.known)["messages"]
    assert 0 < left["expires_in"] <= 20
    assert (left["status"], left["state"]) == ("decided", "prepared")
    assert re.search(r"expires in \d+ s", dying_job.txn("list", *dying_job.known))

    eventually(
        lambda: dying_job.listed(*dying_job.known)["messages"]["state"] == "expired", "the end of the transaction", 60
    )
    assert dying_job.listed(*dying_job.known)["messages"]["expires_in"] is None
    where = ["--store", str(dying_job.checkpoint), "--at", f"kafka={dying_job.servers}"]
    done = CliRunner().invoke(app, ["status", *where, "--json"])
    [status] = json.loads(done.stdout)
    assert (done.exit_code, status["state"], status["expires_in"]) == (1, "waiting", None)
    assert "without a commit: 1 of sink messages" in status["what"]
    assert "on_lost='replay'" in status["advice"]
    assert (status["lost"], status["command"].startswith("onceward txn list ")) == (1, True)


def test_what_status_says_and_advises_is_true_from_the_decision_to_a_dropped_table(
    dying_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command is run as it is shown; the targets that were named hide no deadline of the others."""
    monkeypatch.setattr("onceward.core.operations.status.WAITING_SECONDS", 0.0)

    def told(*where: str) -> Any:
        [one] = json.loads(
            CliRunner().invoke(app, ["status", "--store", str(dying_job.checkpoint), *where, "--json"]).stdout
        )
        return one

    dying_job.epoch(Step.DECIDE_AFTER)
    postgres, kafka = ("--at", f"postgres={dying_job.dsn}"), ("--at", f"kafka={dying_job.servers}")
    alone, both = told(*postgres), told(*postgres, *kafka)
    assert (alone["state"], alone["at_most"], alone["unasked"]) == ("waiting", True, ["messages"])
    assert "the target of sink messages was not asked" in alone["what"]
    assert (both["at_most"], both["unasked"], both["silent"]) == (False, [], [])
    assert abs(alone["expires_in"] - both["expires_in"]) < 30
    assert f"--at kafka={dying_job.servers}" in told()["command"]
    done = CliRunner().invoke(app, ["txn", "commit", "--store", str(dying_job.checkpoint), *postgres, "--yes"])
    assert done.exit_code == 1
    assert "nothing of it expires" not in done.stderr
    assert "expires in at most" in done.stderr
    monkeypatch.setenv(
        "PGPASSWORD", str(conninfo_to_dict(dying_job.dsn).get("password", ""))
    )  # which is never recorded
    done = CliRunner().invoke(app, shlex.split(told()["command"])[1:])
    assert done.exit_code == 0, done.output
    assert dying_job.shown() == ALL
    by_hand = told()
    assert (by_hand["state"], by_hand["advice"]) == ("failed", "start the pipeline")
    assert by_hand["what"].startswith("committed by hand (onceward txn commit)")
    assert CliRunner().invoke(app, shlex.split(by_hand["command"])[1:]).stdout.count("inserted") == 1
    dying_job.look.execute("DROP TABLE inserted")
    doctor = CliRunner().invoke(app, shlex.split(told()["command"])[1:])
    assert doctor.exit_code == 1
    assert "relation" in doctor.stdout or "inserted" in doctor.stdout
