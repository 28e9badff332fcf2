"""RedisSink on a real Valkey that is killed, paused, starved and emptied. SCENARIOS 19 to 21, 62 to 66, 77."""

from __future__ import annotations

import functools
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from tests.hostile import check_altered
from tests.sink_kit import LOG, commit_in_child, context, delete_files_of, prepared
from tests.verify_kit import Job
from typer.testing import CliRunner

from onceward.cli.main import app
from onceward.connectors.redis.client import connect
from onceward.connectors.redis.script import PRUNE, marker_key
from onceward.connectors.redis.sink import RedisSink
from onceward.core.checkpoint import Backoff, CommitPolicy, Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.names import NOTHING, Scope
from onceward.core.contract.policy import OnLost
from onceward.core.contract.transaction import Acknowledgement, CommitStatus, Observation, Progress
from onceward.core.errors import (
    ConfigurationError,
    DataLossError,
    EpochConflictError,
    RetryableSinkError,
    SchemaError,
    SinkError,
)
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import EpochInput, MemoryStore
from onceward.testing.conformance import SinkConformance, SinkUnderTest

from .proxy import Proxy
from .redis_kit import Valkey, running_valkey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SCOPE = Scope("p", "cache", LOG)
MARKER = "onceward:1:p:cache"
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(scope="module")
def shared_valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


@pytest.fixture
def valkey(shared_valkey: Valkey) -> Valkey:
    """An empty server."""
    shared_valkey.client().flushall()
    return shared_valkey


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A server for a test that changes its settings."""
    with running_valkey() as server:
        yield server


def make(folder: Path, valkey: Valkey, **settings: Any) -> RedisSink:
    given = {"name": "cache", "url": valkey.url, "key": "rows", "rows_per_send": 2, "timeout": 5.0, **settings}
    return RedisSink(folder=folder / "log", **given)


def claimed(folder: Path, valkey: Valkey, **settings: Any) -> RedisSink:
    sink = make(folder, valkey, **settings)
    sink.ledger().claim(SCOPE)
    return sink


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(values)})


def streamed(valkey: Valkey, key: str = "rows") -> list[int]:
    return [int(fields["n"]) for _, fields in valkey.client().xrange(key)]


def delete_rows(valkey: Valkey) -> None:
    """Remove the entries, as a reader does that consumes them; markers stay."""
    client = valkey.client()
    for key in client.scan_iter(count=1000):
        if not key.startswith("onceward:"):
            client.delete(key)


def all_numbers(valkey: Valkey) -> list[int]:
    """Of all streams, hashes and lists that are not markers."""
    client, found = valkey.client(), []
    for key in client.scan_iter(count=1000):
        if key.startswith("onceward:"):
            continue
        match client.type(key):
            case "stream":
                found += [int(fields["n"]) for _, fields in client.xrange(key)]
            case "hash":
                found.append(int(client.hget(key, "n")))
            case _:
                found += [json.loads(row)["n"] for row in client.lrange(key, 0, -1)]
    return found


def unwritable(values: list[int]) -> pa.RecordBatch:
    """Rows that have no form in JSON, and no key."""
    texts = pa.array([None] * len(values), pa.string())
    return pa.RecordBatch.from_pydict({"n": values, "text": texts, "x": [[float("nan")]] * len(values)})


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ("stream", "conformance"),
        pytest.param("hash", "conformance:{n}", marks=pytest.mark.nightly),
        pytest.param("list", "conformance-{text}", marks=pytest.mark.nightly),
    ],
)
class TestConformance(SinkConformance):
    """The conformance suite."""

    @pytest.fixture
    def sink_under_test(self, tmp_path: Path, valkey: Valkey, form: str, key: str) -> SinkUnderTest:
        return SinkUnderTest(
            make=lambda: make(tmp_path, valkey, form=form, key=key, rows_per_send=3),
            read=lambda: all_numbers(valkey),
            keyed=form == "hash",
            kill=form == "stream",
            restart=valkey.restart,
            refused=unwritable,
            misfit=pa.schema([("n", pa.int64()), ("text", pa.month_day_nano_interval())]),
            take_away=lambda: delete_rows(valkey),
            delete_prepared=lambda committable: delete_files_of(tmp_path, committable),
        )


# What is written


def test_entries_of_a_stream_are_in_the_rows_order(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey)
    sink.validate(SCHEMA)
    committable = prepared(sink, numbers(*range(5)), numbers(*range(5, 8)))
    assert streamed(valkey) == []
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED
    assert streamed(valkey) == list(range(8))


def test_a_hash_is_the_newest_row_of_its_key(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey, form="hash", key="user:{u}")
    first = pa.RecordBatch.from_pydict({"u": ["a", "b", "a"], "v": [1, 2, 3], "w": ["x", "y", None]})
    second = pa.RecordBatch.from_pydict({"u": ["b"], "v": pa.array([None], pa.int64()), "w": ["z"]})
    sink.commit(prepared(sink, first))
    sink.commit(prepared(sink, second, epoch=2))
    client = valkey.client()
    assert client.hgetall("user:a") == {"u": "a", "v": "3"}
    assert client.hgetall("user:b") == {"u": "b", "w": "z"}


def test_a_stream_can_be_kept_short(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey, maxlen=100, rows_per_send=500)
    sink.commit(prepared(sink, numbers(*range(2000))))
    kept = streamed(valkey)
    assert kept == list(range(2000 - len(kept), 2000))
    assert 100 <= len(kept) < 400


def test_rows_that_cannot_be_written_are_refused_before_the_decision(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey, form="hash", key="user:{n}")
    with pytest.raises(SinkError, match="column 'n' of the key is null"):
        prepared(sink, pa.RecordBatch.from_pydict({"n": pa.array([1, None])}))


# Crashes of our process


@pytest.mark.parametrize("step", [Step.SEND_BEFORE, Step.SEND_AFTER, Step.MARK_AFTER])
def test_62_and_63_a_process_killed_around_a_delivery_goes_on_where_it_was(tmp_path: Path, valkey: Valkey, step: Step):
    sink = claimed(tmp_path, valkey)
    committable = prepared(sink, numbers(*range(6)))
    assert commit_in_child(sink, committable, f"{step}:2") == -signal.SIGKILL
    assert len(streamed(valkey)) == (2 if step is Step.SEND_BEFORE else 4)
    assert commit_in_child(sink, committable, f"{step}:1") == -signal.SIGKILL
    assert commit_in_child(sink, committable) == 0
    assert streamed(valkey) == list(range(6))


# Crashes of the server, and what the network loses


def test_77_a_server_killed_between_two_deliveries_has_what_it_acknowledged(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey)
    committable = prepared(sink, numbers(*range(10)))
    left = [3]

    def kills(step: Step) -> None:
        left[0] -= step is Step.SEND_BEFORE
        if left[0] == 0:
            valkey.kill()

    with hooked(kills):
        assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    for _ in range(2):
        outcome = sink.commit(committable)
        assert outcome.status is CommitStatus.RETRY_LATER
        assert "Connection refused" in outcome.detail
    valkey.start()
    assert streamed(valkey) == [0, 1, 2, 3]
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert streamed(valkey) == list(range(10))


@pytest.mark.parametrize("form", ["stream", "list"])
def test_19_a_server_killed_again_and_again_at_any_moment_has_each_row_once(
    tmp_path: Path, own_valkey: Valkey, form: str
):
    sink = claimed(tmp_path, own_valkey, rows_per_send=5, form=form)
    committables = [prepared(sink, numbers(*range(200 * n, 200 * n + 200)), epoch=n) for n in range(50)]
    done = threading.Event()
    kills = [0]

    def kill_and_start() -> None:
        while not done.wait(0.05):
            own_valkey.kill()
            own_valkey.start()
            kills[0] += 1

    killer = threading.Thread(target=kill_and_start)
    killer.start()
    outcomes = [CommitStatus.RETRY_LATER]
    while CommitStatus.RETRY_LATER in outcomes:
        outcomes = [outcome.status for outcome in sink.commit_many(committables)]
    done.set()
    killer.join()
    assert kills[0] >= 3
    assert all(status in (CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED) for status in outcomes)
    assert all_numbers(own_valkey) == list(range(10000))


def test_20_a_lost_answer_is_repeated_and_written_once(tmp_path: Path, valkey: Valkey):
    proxy = Proxy(valkey.port, lambda data: b"EVAL" in data and b"XADD" in data, times=3)
    try:
        sink = claimed(tmp_path, valkey, url=f"redis://127.0.0.1:{proxy.port}")
        committable = prepared(sink, numbers(*range(6)))
        statuses = [sink.commit(committable).status for _ in range(4)]
    finally:
        proxy.close()
    assert statuses == [CommitStatus.RETRY_LATER] * 3 + [CommitStatus.COMMITTED]
    assert proxy.lost == 3
    assert streamed(valkey) == list(range(6))


def test_20_a_connection_that_an_administrator_cut_is_replaced(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey)
    assert sink.commit(prepared(sink, numbers(1))).status is CommitStatus.COMMITTED
    assert valkey.client().execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes") >= 1
    committable = prepared(sink, numbers(2), epoch=2)
    while sink.commit(committable).status is CommitStatus.RETRY_LATER:
        pass
    assert streamed(valkey) == [1, 2]


def test_20_what_a_paused_server_does_late_is_not_done_twice(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey, timeout=0.3)
    committable = prepared(sink, numbers(*range(4)))
    valkey.pause()
    outcome = sink.commit(committable)
    assert outcome.status is CommitStatus.RETRY_LATER
    assert "Timeout" in outcome.detail
    valkey.resume()
    statuses = [CommitStatus.RETRY_LATER]
    while statuses[-1] is CommitStatus.RETRY_LATER:
        statuses.append(sink.commit(committable).status)
    assert streamed(valkey) == list(range(4))


# What the server keeps


def test_a_delivery_that_is_not_on_disk_is_not_acknowledged_not_even_the_second_time(
    tmp_path: Path, own_valkey: Valkey
):
    sink = claimed(tmp_path, own_valkey, timeout=0.6)
    own_valkey.client().config_set("appendfsync", "no")
    committable = prepared(sink, numbers(*range(4)))
    for _ in range(3):
        outcome = sink.commit(committable)
        assert outcome.status is CommitStatus.RETRY_LATER
        assert "not yet on disk: here 0 of 1" in outcome.detail
        own_valkey.client().execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
    assert streamed(own_valkey) == [0, 1]
    own_valkey.client().config_set("appendfsync", "everysec")
    while sink.commit(committable).status is CommitStatus.RETRY_LATER:
        pass
    assert streamed(own_valkey) == [0, 1, 2, 3]


def test_a_delivery_waits_for_replicas(tmp_path: Path, own_valkey: Valkey):
    with running_valkey(replicaof=f"127.0.0.1 {own_valkey.port}") as replica:
        sink = claimed(tmp_path, own_valkey, replicas=1, timeout=2.0)
        while not own_valkey.client().info()["connected_slaves"]:
            pass
        sink.validate(SCHEMA)
        with pytest.raises(ConfigurationError, match="is a replica"):
            make(tmp_path, replica).validate(SCHEMA)
        first, second = prepared(sink, numbers(1)), prepared(sink, numbers(2), epoch=2)
        while sink.commit(first).status is CommitStatus.RETRY_LATER:
            pass  # its first synchronisation is not over
        assert streamed(replica) == [1]
        replica.kill()
        outcome = sink.commit(second)
        assert outcome.status is CommitStatus.RETRY_LATER
        assert "at replicas 0 of 1" in outcome.detail
        replica.start()
        while sink.commit(second).status is CommitStatus.RETRY_LATER:
            pass
        assert streamed(replica) == [1, 2]
        assert streamed(own_valkey) == [1, 2]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"appendonly": "no"}, "no append-only file"),
        ({"appendfsync": "no"}, "never says"),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "evicts any key"),
    ],
)
def test_a_server_that_may_forget_is_refused_at_the_start(
    tmp_path: Path, own_valkey: Valkey, settings: dict[str, str], says: str
):
    make(tmp_path, own_valkey).validate(SCHEMA)
    for name, value in settings.items():
        own_valkey.client().config_set(name, value)
    with pytest.raises(ConfigurationError, match=says):
        make(tmp_path, own_valkey).validate(SCHEMA)
    make(tmp_path, own_valkey, durable=False).validate(SCHEMA)


def test_a_cluster_and_a_server_that_is_not_there_are_refused_at_the_start(tmp_path: Path):
    with running_valkey(**{"cluster-enabled": "yes"}) as cluster:
        with pytest.raises(ConfigurationError, match="Redis Cluster"):
            make(tmp_path, cluster).validate(SCHEMA)
        cluster.kill()
        with pytest.raises(RetryableSinkError, match=r"cannot ask the server .* at redis://127.0.0.1"):
            make(tmp_path, cluster).validate(SCHEMA)


def test_without_durable_it_does_not_wait_for_the_disk(tmp_path: Path, own_valkey: Valkey):
    own_valkey.client().config_set("appendonly", "no")
    sink = claimed(tmp_path, own_valkey, durable=False)
    assert sink.commit(prepared(sink, numbers(*range(4)))).status is CommitStatus.COMMITTED
    assert streamed(own_valkey) == [0, 1, 2, 3]


def test_a_server_that_was_emptied_is_never_taken_for_an_empty_one(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey)
    committable = prepared(sink, numbers(*range(4)))
    valkey.client().flushall()
    with pytest.raises(DataLossError, match="has lost onceward:1:p:cache"):
        sink.commit(committable)
    assert sink.inspect_many([committable]) == [Observation.BEGUN]
    with pytest.raises(DataLossError, match=r"was emptied, or is another server.*on_lost='skip'"):
        make(tmp_path, valkey).ledger().claim(SCOPE)
    remembered = make(tmp_path, valkey).ledger().check_claim(SCOPE, Progress(1, 1))
    assert not remembered.owned
    assert "was emptied" in remembered.lost
    assert valkey.client().keys() == []
    sink.ledger().release(SCOPE)
    sink.ledger().claim(SCOPE)
    assert sink.commit(committable).status is CommitStatus.COMMITTED


class Run:
    """Runs of one pipeline, one after the other."""

    def __init__(self, folder: Path, valkey: Valkey, **settings: Any) -> None:
        self._make = functools.partial(make, folder, valkey)
        self._store = MemoryStore()
        self.sink = self._make(**settings)
        self.coordinator: Coordinator

    def start(self, on_lost: OnLost = OnLost.FAIL, **opening: Any) -> None:
        policy = CommitPolicy(on_lost=on_lost, commits=Backoff(first=0.01, most=0.1, attempts=3), sweep_every=1e9)
        self.coordinator = Coordinator("p", self._store, [self.sink], policy)
        self.coordinator.open(**opening)

    def change(self, **settings: Any) -> None:
        self.sink = self._make(**settings)

    def epoch(self, epoch: int, *values: int) -> None:
        about = EpochInput(query="q", start=epoch, end=epoch + 1)
        self.coordinator.admit(epoch, about)
        writing = SubtaskEpoch(self.sink, self.coordinator.context("cache", epoch, subtask=0))
        writing.write(numbers(*values))
        committable = writing.pre_commit()
        assert committable is not None
        acknowledgement = Acknowledgement(
            epoch=epoch, subtask=0, attempt=0, sinks=("cache",), committables=(committable,)
        )
        self.coordinator.commit(epoch, [acknowledgement], about)


def test_with_durable_an_emptied_server_stops_each_start_until_told_to_go_on(tmp_path: Path, valkey: Valkey):
    run = Run(tmp_path, valkey)
    run.start()
    run.epoch(0, 1, 2)
    valkey.client().flushall()
    for _ in range(2):
        with pytest.raises(DataLossError, match="was emptied, or is another server"):
            run.start()
    run.change(durable=False)
    run.start()
    run.epoch(1, 3)
    run.change(durable=True)
    run.start()
    run.epoch(2, 4)
    assert streamed(valkey) == [3, 4]


def test_a_rewind_goes_on_with_a_server_that_was_emptied(tmp_path: Path, valkey: Valkey):
    run = Run(tmp_path, valkey)
    run.start()
    run.epoch(0, 1, 2)
    valkey.client().flushall()
    run.start(rewind="the server was emptied", first_epoch=0)
    run.epoch(0, 1, 2)
    run.start()
    assert streamed(valkey) == [1, 2]


def test_with_durable_what_is_decided_when_a_server_was_emptied_is_written_once_told_to_go_on(
    tmp_path: Path, valkey: Valkey
):
    run = Run(tmp_path, valkey)
    run.start()
    run.epoch(0, 1, 2)

    def empty(step: Step) -> None:
        if step is Step.DECIDE_AFTER:
            valkey.client().flushall()

    with hooked(empty), pytest.raises(DataLossError, match=r"has lost onceward:1:p:cache.*was emptied"):
        run.epoch(1, 3, 4, 5)
    with pytest.raises(DataLossError, match="was emptied"):
        run.start()
    assert valkey.client().keys() == []
    run.change(durable=False)
    run.start()
    assert streamed(valkey) == [3, 4, 5]
    run.change(durable=True)
    run.start()
    run.epoch(2, 6)
    assert streamed(valkey) == [3, 4, 5, 6]


def test_with_durable_a_server_that_was_emptied_between_two_epochs_fails_the_next_one_before_its_decision(
    tmp_path: Path, valkey: Valkey
):
    run = Run(tmp_path, valkey)
    run.start()
    run.epoch(0, 1)
    valkey.client().flushall()
    with pytest.raises(DataLossError, match="was emptied"):
        run.epoch(1, 2)
    assert run.coordinator.view.decided == 0
    assert valkey.client().keys() == []


ACCEPTED = "continuing with a target as it is"


def test_skip_accepts_an_emptied_server_once_and_writes_all_that_follows(
    tmp_path: Path, valkey: Valkey, caplog: pytest.LogCaptureFixture
):
    run = Run(tmp_path, valkey)
    run.start(OnLost.SKIP)
    run.epoch(0, 1, 2)
    run.epoch(1, 3)
    valkey.client().flushall()
    for epoch in range(2, 5):
        run.epoch(epoch, 10 * epoch, 10 * epoch + 1, 10 * epoch + 2)
    run.start(OnLost.FAIL)
    run.epoch(5, 50)
    assert streamed(valkey) == [20, 21, 22, 30, 31, 32, 40, 41, 42, 50]
    assert caplog.text.count(ACCEPTED) == 1
    assert "skipping lost transaction" not in caplog.text


def test_skip_accepts_an_emptied_server_at_a_start(tmp_path: Path, valkey: Valkey, caplog: pytest.LogCaptureFixture):
    run = Run(tmp_path, valkey)
    run.start()
    run.epoch(0, 1, 2)
    valkey.client().flushall()
    run.start(OnLost.SKIP)
    run.start(OnLost.FAIL)
    run.epoch(1, 3)
    assert streamed(valkey) == [3]
    assert caplog.text.count(ACCEPTED) == 1


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize(
    "when", [(Step.DECIDE_AFTER, 0), (Step.SEND_BEFORE, 2), (Step.SEND_AFTER, 4), (Step.MARK_AFTER, 4)]
)
def test_skip_writes_what_is_decided_and_was_not_acknowledged_when_the_server_was_emptied(
    tmp_path: Path, valkey: Valkey, caplog: pytest.LogCaptureFixture, when: tuple[Step, int], epoch: int
):
    """Also in the first epoch, which has no earlier ones that could show the loss."""
    step, kept = when
    run = Run(tmp_path, valkey)
    run.start(OnLost.SKIP)
    if epoch:
        run.epoch(0, 100)
    left = [1 if step is Step.DECIDE_AFTER else 2]

    def empty(reached: Step) -> None:
        left[0] -= reached is step
        if left[0] == 0 and reached is step:
            valkey.client().flushall()

    with hooked(empty):
        run.epoch(epoch, *range(8))
    assert streamed(valkey) == list(range(kept, 8))
    run.start(OnLost.FAIL)
    run.epoch(epoch + 1, 8)
    assert streamed(valkey) == list(range(kept, 9))
    assert caplog.text.count(ACCEPTED) == (1 if epoch or kept else 0)  # else there was nothing to lose
    assert "skipping lost transaction" not in caplog.text


@pytest.mark.parametrize("on_lost", [OnLost.FAIL, OnLost.REPLAY])
def test_an_emptied_server_never_settles_a_transaction(tmp_path: Path, valkey: Valkey, on_lost: OnLost):
    run = Run(tmp_path, valkey)
    run.start(on_lost)
    run.epoch(0, 100)

    def empty(reached: Step) -> None:
        if reached is Step.DECIDE_AFTER:
            valkey.client().flushall()

    with hooked(empty), pytest.raises(DataLossError, match="was emptied"):
        run.epoch(1, 1, 2)
    with pytest.raises(DataLossError, match=r"was emptied.*on_lost='skip'"):
        run.start(on_lost)
    run.start(OnLost.SKIP)
    assert streamed(valkey) == [1, 2]


def test_skip_accepts_a_server_that_lost_acknowledged_rows_of_a_delivery(tmp_path: Path, valkey: Valkey):
    run = Run(tmp_path, valkey)
    run.start()
    run.epoch(0, 100)
    client = valkey.client()
    left = [2]

    def lose(reached: Step) -> None:
        left[0] -= reached is Step.MARK_AFTER
        if left[0] == 0 and reached is Step.MARK_AFTER:
            [name] = [field for field, sent in client.hgetall(MARKER).items() if sent == "4"]
            client.hset(MARKER, name, 2)  # as after a start from an older file
            client.xtrim("rows", maxlen=3, approximate=False)

    with hooked(lose), pytest.raises(DataLossError, match=r"has 2 rows .* had acknowledged 4"):
        run.epoch(1, *range(8))
    with pytest.raises(DataLossError, match=r"has 2 rows .* had acknowledged 4.*on_lost='skip'"):
        run.start()
    run.start(OnLost.SKIP)
    run.start()
    run.epoch(2, 8)
    assert streamed(valkey)[-5:] == [4, 5, 6, 7, 8]


def test_without_durable_a_pipeline_goes_on_after_the_server_was_emptied(
    tmp_path: Path, valkey: Valkey, caplog: pytest.LogCaptureFixture
):
    run = Run(tmp_path, valkey, durable=False)
    run.start()
    run.epoch(0, 1, 2)
    valkey.client().flushall()
    run.epoch(1, 3, 4, 5)  # in the same run
    assert streamed(valkey) == [3, 4, 5]
    assert "had lost rows" in caplog.text
    valkey.client().flushall()
    run.start()
    run.start()
    run.epoch(2, 6, 7)
    run.epoch(3, 8)
    assert streamed(valkey) == [6, 7, 8]
    assert valkey.client().hget(MARKER, "log") == run.coordinator.writer.token.log


@pytest.mark.parametrize("step", [Step.SEND_AFTER, Step.SEND_BEFORE, Step.MARK_AFTER])
def test_without_durable_what_may_have_been_written_is_not_written_again(
    tmp_path: Path, own_valkey: Valkey, caplog: pytest.LogCaptureFixture, step: Step
):
    client = own_valkey.client()
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "allkeys-random")
    sink = claimed(tmp_path, own_valkey, durable=False)
    committable = prepared(sink, numbers(*range(8)))
    assert commit_in_child(sink, committable, f"{step}:2") == -signal.SIGKILL
    client.delete(MARKER)  # as this server may do
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    left_out = {Step.SEND_AFTER: [], Step.SEND_BEFORE: [2, 3], Step.MARK_AFTER: [4, 5]}[step]
    assert streamed(own_valkey) == [n for n in range(8) if n not in left_out]
    assert "they are left out" in caplog.text


@pytest.mark.parametrize("step", [Step.SEND_AFTER, Step.SEND_BEFORE, Step.MARK_AFTER])
def test_without_durable_an_emptied_server_gets_all_that_was_not_acknowledged(
    tmp_path: Path, valkey: Valkey, step: Step
):
    sink = claimed(tmp_path, valkey, durable=False)
    committable = prepared(sink, numbers(*range(8)))
    assert commit_in_child(sink, committable, f"{step}:2") == -signal.SIGKILL
    valkey.client().flushall()
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert streamed(valkey) == list(range(4 if step is Step.MARK_AFTER else 2, 8))
    assert valkey.client().hget(MARKER, committable.transaction) == "8"


def test_without_durable_a_server_that_is_behind_gets_what_follows(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey, durable=False)
    committable = prepared(sink, numbers(*range(6)))
    assert commit_in_child(sink, committable, f"{Step.MARK_AFTER}:2") == -signal.SIGKILL
    client = valkey.client()
    client.hset(MARKER, committable.transaction, 2)  # as after a start from an older file
    client.xtrim("rows", maxlen=2, approximate=False)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert streamed(valkey) == [2, 3, 4, 5]
    assert client.hget(MARKER, committable.transaction) == "6"


def test_35_without_durable_a_paused_process_is_refused_by_a_marker_that_was_made_again(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey, durable=False)
    old = prepared(sink, numbers(1, 2))
    paused = make(tmp_path / "paused", valkey, durable=False)
    shutil.copytree(sink.folder, paused.folder)
    sink.commit(old)
    valkey.client().delete(MARKER)
    assert sink.commit(prepared(sink, numbers(3), epoch=2, generation=9)).status is CommitStatus.COMMITTED
    with pytest.raises(DataLossError, match="of an epoch that has ended"):
        paused.commit(old)
    assert streamed(valkey) == [1, 2, 3]


def test_without_durable_another_logs_marker_is_respected(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey, durable=False)
    valkey.client().hset(MARKER, "log", "ffff0000")
    with pytest.raises(EpochConflictError, match="has taken"):
        sink.commit(prepared(sink, numbers(1)))
    for refused in (lambda: sink.ledger().claim(SCOPE), lambda: sink.ledger().check_claim(SCOPE, Progress(1, 1))):
        with pytest.raises(EpochConflictError, match="from decision log ffff0000"):
            refused()


@pytest.mark.parametrize("durable", [True, False])
def test_options_of_the_url_do_not_change_how_answers_are_read(tmp_path: Path, valkey: Valkey, durable: bool):
    url = f"{valkey.url}?decode_responses=true&protocol=3&client_name=me"
    sink = claimed(tmp_path, valkey, url=url, durable=durable)
    sink.validate(SCHEMA)
    sink.ledger().claim(SCOPE)
    for epoch in range(3):
        assert sink.commit(prepared(sink, numbers(epoch), epoch=epoch)).status is CommitStatus.COMMITTED
        sink.ledger().completed(SCOPE, epoch)
    assert list(sink.lingering(SCOPE)) == []
    assert valkey.client().hlen(MARKER) == 4


def test_a_server_that_lost_acknowledged_rows_is_found_out(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey)
    committable = prepared(sink, numbers(*range(6)))
    assert commit_in_child(sink, committable, f"{Step.MARK_AFTER}:2") == -signal.SIGKILL
    valkey.client().hset(MARKER, committable.transaction, 2)
    with pytest.raises(DataLossError, match=r"has 2 rows.*had acknowledged 4"):
        sink.commit(committable)
    assert sink.inspect_many([committable]) == [Observation.BEGUN]
    assert "had acknowledged 4" in make(tmp_path, valkey).ledger().check_claim(SCOPE, Progress(1, 1)).lost
    assert streamed(valkey) == [0, 1, 2, 3]


def test_91_a_server_that_knows_the_name_from_another_log_refuses_it(tmp_path: Path, valkey: Valkey):
    claimed(tmp_path, valkey)
    other = make(tmp_path / "new", valkey)
    theirs = SCOPE._replace(log="ffff0000")
    for refused in (lambda: other.ledger().claim(theirs), lambda: other.ledger().check_claim(theirs, NOTHING)):
        with pytest.raises(EpochConflictError, match="from decision log 0123abcd"):
            refused()
    other.ledger().release(SCOPE._replace(log="ffff0000"))
    other.ledger().claim(SCOPE._replace(log="ffff0000"))
    sink = make(tmp_path, valkey)
    with pytest.raises(EpochConflictError, match="has taken"):
        sink.commit(prepared(sink, numbers(1)))
    assert streamed(valkey) == []


@pytest.mark.parametrize("pruned", [False, True])
def test_91_a_server_remembers_how_far_the_log_had_come(tmp_path: Path, valkey: Valkey, pruned: bool):
    """Also if the folder of the segments is new, or is an outdated copy of it."""
    sink = claimed(tmp_path, valkey)
    for epoch in (3, 4):
        sink.commit(prepared(sink, numbers(epoch), epoch=epoch))
    sink.ledger().completed(SCOPE, 9 if pruned else 4)
    new = make(tmp_path / "new", valkey)
    for newest in (Progress(1, 4), Progress(1, 9), Progress(2, 0)):
        new.ledger().check_claim(SCOPE, newest)
    for newest in (NOTHING, Progress(1, 3), Progress(0, 9)):
        with pytest.raises(EpochConflictError, match=r"redis://.* holds epoch 4"):
            new.ledger().check_claim(SCOPE, newest)
    new.ledger().release(SCOPE)
    new.ledger().check_claim(SCOPE, NOTHING)
    new.ledger().claim(SCOPE)
    later = prepared(new, numbers(7), epoch=0)  # of a START that is not above those that the server had seen
    assert new.commit(later).status is CommitStatus.COMMITTED
    new.ledger().completed(SCOPE, 0)
    new.ledger().check_claim(SCOPE, Progress(1, 0))


def test_a_rewind_forgets_no_delivery_of_what_is_decided(tmp_path: Path, valkey: Valkey):
    """It is finished before the rewind is."""
    sink = claimed(tmp_path, valkey)
    committable = prepared(sink, numbers(*range(6)))
    assert commit_in_child(sink, committable, f"{Step.SEND_AFTER}:2") == -signal.SIGKILL
    sink.ledger().release(SCOPE)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert streamed(valkey) == list(range(6))


# Markers


def test_markers_are_kept_until_a_later_epoch_is_completed_and_then_deleted(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey)
    for epoch in range(3):
        sink.commit(prepared(sink, numbers(epoch), epoch=epoch))
    fields = {name for name in valkey.client().hkeys(MARKER) if name.startswith("onceward:")}
    assert len(fields) == 3
    sink.ledger().completed(SCOPE, 0)
    assert fields <= set(valkey.client().hkeys(MARKER))
    sink.ledger().completed(SCOPE, 2)
    assert valkey.client().hlen(MARKER) == 4  # log, floor, and the newest
    assert valkey.client().hmget(MARKER, "floor:start", "floor:epoch") == ["1", "1"]
    valkey.client().eval(PRUNE, 1, MARKER, SCOPE.log, 1, 0)  # late, by a process that was paused
    assert valkey.client().hmget(MARKER, "floor:start", "floor:epoch") == ["1", "1"], "it never falls"
    assert valkey.client().ttl(MARKER) == -1


def test_35_what_a_paused_process_sends_after_its_epoch_ended_is_refused(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey)
    committable = prepared(sink, numbers(1, 2))
    paused = make(tmp_path / "paused", valkey)
    shutil.copytree(sink.folder, paused.folder)
    sink.commit(committable)
    sink.commit(prepared(sink, numbers(3), epoch=2))
    sink.ledger().completed(SCOPE, 2)
    with pytest.raises(DataLossError, match="of an epoch that has ended"):
        paused.commit(committable)
    assert streamed(valkey) == [1, 2, 3]


def test_35_what_a_paused_process_sends_after_a_rewind_is_refused_once_the_new_start_writes(
    tmp_path: Path, valkey: Valkey
):
    sink = claimed(tmp_path, valkey)
    old = prepared(sink, numbers(1), epoch=1)
    paused = make(tmp_path / "paused", valkey)
    shutil.copytree(sink.folder, paused.folder)
    sink.commit(old)
    for epoch in (2, 3):
        sink.commit(prepared(sink, numbers(epoch), epoch=epoch))
        sink.ledger().completed(SCOPE, epoch)
    decided = prepared(sink, numbers(4), epoch=4)
    for _ in range(2):  # a start that is interrupted releases again
        sink.ledger().release(SCOPE)
        sink.ledger().check_claim(SCOPE, NOTHING)
    assert sink.commit(decided).status is CommitStatus.COMMITTED
    assert sink.commit(prepared(sink, numbers(12), epoch=2, generation=7)).status is CommitStatus.COMMITTED
    with pytest.raises(DataLossError, match="of an epoch that has ended"):
        paused.commit(old)
    assert streamed(valkey) == [1, 2, 3, 4, 12]
    new = make(tmp_path / "new", valkey)
    new.ledger().check_claim(SCOPE, Progress(7, 2))
    with pytest.raises(EpochConflictError, match=r"redis://.* holds epoch 2"):
        new.ledger().check_claim(SCOPE, Progress(1, 9))


def test_a_decided_transaction_that_is_finished_after_a_rewind_says_nothing_of_how_far_the_log_had_come(
    tmp_path: Path, valkey: Valkey
):
    """Also if its START is above the floor: its rows are released, and so is all that it would show."""
    sink = claimed(tmp_path, valkey)
    for epoch in (1, 2):
        sink.commit(prepared(sink, numbers(epoch), epoch=epoch))
        sink.ledger().completed(SCOPE, epoch)
    decided = prepared(sink, numbers(*range(3, 7)), epoch=3, generation=2)
    assert commit_in_child(sink, decided, f"{Step.SEND_AFTER}:1") == -signal.SIGKILL
    sink.ledger().release(SCOPE)
    assert sink.commit(decided).status is CommitStatus.COMMITTED
    assert streamed(valkey) == list(range(1, 7))
    make(tmp_path / "new", valkey).ledger().check_claim(SCOPE, NOTHING)


def test_a_rewound_pipelines_lower_epochs_are_written(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey)
    for epoch in (8, 9):
        sink.commit(prepared(sink, numbers(epoch), epoch=epoch))
    sink.ledger().completed(SCOPE, 9)
    assert sink.commit(prepared(sink, numbers(5), epoch=5, generation=20)).status is CommitStatus.COMMITTED
    sink.ledger().completed(SCOPE, 5)
    assert sink.commit(prepared(sink, numbers(6), epoch=6, generation=20)).status is CommitStatus.COMMITTED
    assert streamed(valkey) == [8, 9, 5, 6]


# All or nothing


def test_a_key_of_another_type_stops_the_delivery_before_its_first_row(tmp_path: Path, valkey: Valkey):
    sink = claimed(tmp_path, valkey, key="s:{n}", rows_per_send=4)
    client = valkey.client()
    client.set("s:2", "mine")
    committable = prepared(sink, numbers(0, 1, 2, 3))
    with pytest.raises(SinkError, match=r"key 's:2' is a string, and not a stream. Nothing"):
        sink.commit(committable)
    assert sorted(client.keys("s:*")) == ["s:2"]
    client.delete("s:2")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sorted(all_numbers(valkey)) == [0, 1, 2, 3]


_LAST: Final = 2**64 - 1


@pytest.mark.parametrize("seed", range(12))
def test_a_delivery_of_which_any_command_fails_writes_none_of_its_rows(tmp_path: Path, own_valkey: Valkey, seed: int):
    """Whichever row it is, and whatever is wrong with its key; and once that is mended each row is there once."""
    chosen, client = random.Random(seed), own_valkey.client()
    form = chosen.choice(["stream", "stream", "hash", "list"])
    client.execute_command(
        *("ACL", "SETUSER", "partly", "reset", "on", ">open-sesame", "+@all", "~onceward:*", "%R~row:*", "~row:*"),
        *("-xadd", "-rpush", "-hset", "-hdel", "(+hset ~onceward:*)", "(+xadd +rpush +hset +hdel ~row:[0-4])"),
    )
    row, wrong = chosen.randrange(5), chosen.choice(["type", "right", *(["id"] * 2 if form == "stream" else [])])
    values, given = [0, 1, 2, 3, 4], {"form": form, "key": "row:{n}", "rows_per_send": 5}
    if wrong == "type":
        client.set(f"row:{row}", "mine")
    if wrong == "id":
        given["key"] = "row"
        client.xadd("row", {"n": -1}, id=f"{_LAST}-{_LAST - row}")
        client.xadd("other", {"n": -1})
    if wrong == "right":
        values[row] = 9
        given |= {"username": "partly", "password": "open-sesame"}
    sink = make(tmp_path, own_valkey, **given)
    make(tmp_path, own_valkey).ledger().claim(SCOPE)
    before = {key: client.dump(key) for key in client.keys("row*")} if wrong != "id" else client.xlen("row")
    committable = prepared(sink, numbers(*values))
    for _ in range(2):
        with pytest.raises(SinkError, match="Nothing of the delivery is written"):
            sink.commit(committable)
        after = {key: client.dump(key) for key in client.keys("row*")} if wrong != "id" else client.xlen("row")
        assert after == before
    assert client.hget(MARKER, committable.transaction) is None
    client.delete("row", f"row:{row}")
    client.execute_command("ACL", "SETUSER", "partly", "+@all", "~*")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert sorted(n for n in all_numbers(own_valkey) if n >= 0) == sorted(values)


@pytest.mark.parametrize("form", ["stream", "hash", "list"])
def test_a_value_that_the_server_never_takes_is_refused_before_the_decision(
    tmp_path: Path, own_valkey: Valkey, form: str
):
    own_valkey.client().config_set("proto-max-bulk-len", 1024 * 1024)
    sink = claimed(tmp_path, own_valkey, form=form, key="row:{n}")
    rows = pa.RecordBatch.from_pydict({"n": [1, 2, 3], "text": ["", "x" * (1024 * 1024 + 1), ""]})
    transaction = sink.begin(context("cache"))
    with pytest.raises(SchemaError, match=r"a value has 10\d+ bytes.*takes 1048576 \(proto-max-bulk-len\)"):
        sink.write(transaction, rows)
    sink.discard(transaction)
    fits = pa.RecordBatch.from_pydict({"n": [1], "text": ["x" * (1024 * 1024 - 100)]})
    assert sink.commit(prepared(sink, fits, epoch=2)).status is CommitStatus.COMMITTED


def test_a_server_that_takes_only_small_requests_is_refused_at_the_start(tmp_path: Path, own_valkey: Valkey):
    own_valkey.client().config_set("client-query-buffer-limit", 4 * 1024 * 1024)
    with pytest.raises(
        ConfigurationError, match="too little for a delivery: set client-query-buffer-limit to 67108864"
    ):
        make(tmp_path, own_valkey).validate(SCHEMA)


@pytest.mark.parametrize(
    "rights",
    ["+@all -xadd", "+@all -hset", "resetkeys ~onceward:* ~rows:1", "resetkeys ~rows*", "+@all -@scripting"],
)
def test_a_user_without_the_rights_writes_nothing_at_all(tmp_path: Path, valkey: Valkey, rights: str):
    sink = claimed(tmp_path, valkey)
    client = valkey.client()
    client.execute_command("ACL SETUSER", "weak", "reset", "on", ">open-sesame", "~*", "&*", "+@all", *rights.split())
    weak = make(tmp_path, valkey, key="rows:{n}", rows_per_send=4, username="weak", password="open-sesame")
    committable = prepared(weak, numbers(1, 2, 3))
    with pytest.raises(SinkError) as caught:
        weak.commit(committable)
    assert not isinstance(caught.value, RetryableSinkError)
    assert "sesame" not in str(caught.value)
    assert client.keys("rows*") == []
    assert client.hget(MARKER, committable.transaction) is None
    client.execute_command("ACL SETUSER", "weak", "~*", "+@all")
    assert weak.commit(committable).status is CommitStatus.COMMITTED
    assert sorted(all_numbers(valkey)) == [1, 2, 3]
    client.execute_command("ACL DELUSER", "weak")
    assert sink.guarantee == "exactly-once"


@pytest.mark.parametrize(("form", "more"), [("stream", ["+xadd", "+xinfo|stream"]), ("hash", []), ("list", ["+rpush"])])
def test_the_rights_that_the_documentation_names_are_enough(
    tmp_path: Path, own_valkey: Valkey, form: str, more: list[str]
):
    rights = ["+eval", "+info", "+waitaof", "+hget", "+hgetall", "+hset", "+hdel", "+hkeys", "+del", "+type"]
    keys = ["~onceward:1:*", "~rows:*"]
    own_valkey.client().execute_command("ACL SETUSER", "least", "reset", "on", ">open-sesame", *keys, *rights, *more)
    given = {"form": form, "key": "rows:{n}", "username": "least", "password": "open-sesame"}
    sink = make(tmp_path, own_valkey, **given)
    sink.validate(SCHEMA)
    sink.ledger().claim(SCOPE)
    for epoch in range(3):
        assert sink.commit(prepared(sink, numbers(epoch), epoch=epoch)).status is CommitStatus.COMMITTED
        sink.ledger().completed(SCOPE, epoch)
    sink.ledger().release(SCOPE._replace(log="ffff0000"))
    assert sorted(all_numbers(own_valkey)) == [0, 1, 2]
    assert own_valkey.client().exists(MARKER) == 0


def test_a_wrong_password_is_an_error_at_the_start_that_does_not_repeat_it(tmp_path: Path, own_valkey: Valkey):
    own_valkey.client().config_set("requirepass", "open-sesame")
    wrong = make(tmp_path, own_valkey, url=own_valkey.url.replace("//", "//:wrong-sesame@"))
    with pytest.raises(SinkError) as caught:
        wrong.validate(SCHEMA)
    assert not isinstance(caught.value, RetryableSinkError)
    assert "sesame" not in str(caught.value)
    make(tmp_path, own_valkey, password="open-sesame").validate(SCHEMA)


def test_an_altered_committable_is_refused_and_touches_nothing(tmp_path: Path, own_valkey: Valkey):
    sink, client = claimed(tmp_path, own_valkey), own_valkey.client()
    good = prepared(sink, numbers(1, 2, 3))

    def state() -> dict[str, bytes]:
        folder = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        return {**folder, **{f"key {key}": client.object("encoding", key) for key in client.scan_iter()}}

    check_altered(sink, good, state, {"rows", "proof", "handle"})
    assert sink.commit(good).status is CommitStatus.COMMITTED
    assert sorted(all_numbers(own_valkey)) == [1, 2, 3]


@pytest.mark.parametrize("text", [b"", b"x", b"\xff", b"9" * 5000, b"'; --"])
def test_an_altered_marker_is_one_of_our_errors(tmp_path: Path, own_valkey: Valkey, text: bytes):
    sink, client = claimed(tmp_path, own_valkey), own_valkey.client()
    client.hset(MARKER, mapping={"floor:start": text, "floor:epoch": text, text: text, "released": text})
    with pytest.raises(SinkError, match="its floor is no number"):
        sink.ledger().check_claim(SCOPE, NOTHING)
    client.hset(MARKER, "log", text)
    for ask in (lambda: sink.ledger().check_claim(SCOPE, NOTHING), lambda: sink.ledger().claim(SCOPE)):
        with pytest.raises(EpochConflictError):
            ask()


def test_a_server_without_memory_takes_all_of_a_delivery_or_nothing(tmp_path: Path, own_valkey: Valkey):
    sink = claimed(tmp_path, own_valkey, rows_per_send=500)
    client = own_valkey.client()
    filler = pa.RecordBatch.from_pydict({"n": list(range(3000)), "text": ["x" * 2000] * 3000})
    committable = prepared(sink, filler)
    client.config_set("maxmemory", client.info()["used_memory"] + 2_000_000)
    outcome = sink.commit(committable)
    assert outcome.status is CommitStatus.RETRY_LATER
    assert "maxmemory" in outcome.detail
    held = streamed(own_valkey)
    assert held == list(range(len(held)))
    assert 0 < len(held) < 3000
    assert len(held) % 500 == 0
    client.config_set("maxmemory", 0)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert streamed(own_valkey) == list(range(3000))


# In pipelines


def test_the_example_writes_each_row_once_however_often_it_is_run(
    tmp_path: Path, valkey: Valkey, driver_environment: dict[str, str]
):
    example = Path(__file__).parents[1] / "examples" / "engine_redis.py"
    for _ in range(2):
        command = [sys.executable, str(example), valkey.url, str(tmp_path)]
        done = subprocess.run(command, env=driver_environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "exactly-once" in done.stdout
    assert streamed(valkey, "events") == list(range(1000))
    assert valkey.client().hgetall("user:u3") == {"user": "u3", "n": "998"}


@pytest.mark.spark
@pytest.mark.slow
def test_in_spark_a_query_that_is_run_again_writes_nothing_twice(tmp_path: Path, valkey: Valkey, spark: SparkSession):
    from onceward.connectors.spark import exactly_once

    spark.range(100).repartition(4).write.json(str(tmp_path / "input"))
    sink = RedisSink("cache", tmp_path / "segments", url=valkey.url, key="rows", rows_per_send=7, select=["id AS n"])
    for _ in range(2):
        numbers = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).json(str(tmp_path / "input"))
        writer = exactly_once(numbers, sink, checkpoint=str(tmp_path / "checkpoint"), pipeline="spark")
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert sorted(streamed(valkey)) == list(range(100))


class Told(Job):
    """A pipeline that writes each batch four times, and what `onceward verify` says of it."""

    def __init__(self, folder: Path, valkey: Valkey, **settings: Any) -> None:
        self.place = [f"redis:{settings.get('key', 'rows')}", "--at", f"redis={valkey.url}"]
        super().__init__(make(folder, valkey, **settings), folder / "decisions")

    def write(self, *batches: pa.RecordBatch) -> None:
        for batch in batches:
            self.run(1, lambda *_, rows=batch: rows)

    def told(self, code: int = 1) -> tuple[int, int, str]:
        [line] = self.audit(*self.place, code=code)["epochs"]
        return line["written"], line["found"], line["verdict"]


STRANGE = {
    "n": [1, 2, 3, 4],
    "text": ["", None, "a b\r\n", "ä\0"],
    "bytes": [b"\xff\x00", b"", None, b"x"],
    "real": [0.1, None, -0.0, 1e300],
    "list": [[1], [], None, [2, 3]],
    "yes": [True, None, False, True],
    "Redis key": ["a", "b", None, "c"],
    "words": pa.array(["x", "y", None, "x"]).dictionary_encode(),
}


@pytest.mark.parametrize(("form", "key"), [("stream", "rows"), ("stream", "a[1]*-{n}:{text}"), ("list", "rows-{yes}")])
def test_what_streams_and_lists_hold_is_proven_until_it_is_changed(tmp_path: Path, valkey: Valkey, form: str, key: str):
    """Deleted, copied, added elsewhere; keys of others and of other kinds are not taken for rows of ours."""
    named = [column for column in STRANGE if f"{{{column}}}" in key]
    every = pa.record_batch(STRANGE).to_pylist()
    strange = pa.RecordBatch.from_pylist([row for row in every if all(row[column] is not None for column in named)])
    job = Told(tmp_path, valkey, form=form, key=key)
    job.write(strange, strange.slice(0, 1), strange)
    rows = 4 * (2 * strange.num_rows + 1)
    client = connect(job.sink.settings)
    other = {"stream": client.rpush, "list": lambda key, row: client.xadd(key, {"n": row})}[form]
    for name in ("a[1]*-t:x", "rows-x") if key != "rows" else ():
        other(name, "1")  # of a kind that is not the sink's
    client.xadd("other", {"n": "1"})
    assert job.told(0) == (rows, rows, "proven")
    [some, *_] = sorted(name for name in client.scan_iter() if client.type(name) == form.encode() and name != b"other")
    if named:
        client.rename(some, some + b"x")
        assert job.told() == (rows, rows, "differs")
        client.rename(some + b"x", some)
        assert job.told(0) == (rows, rows, "proven")
    if form == "list":
        kept = client.lindex(some, 0)
        client.lset(some, 0, kept.replace(b'"n":', b'"n":9'))
        assert job.told() == (rows, rows, "differs")
        client.lset(some, 0, kept)
        assert job.told(0) == (rows, rows, "proven")
        client.rpush(some, kept)
        assert job.told() == (rows, rows + 1, "differs")
    else:
        [(number, fields), *_] = client.xrange(some)
        client.xdel(some, number)
        assert job.told() == (rows, rows - 1, "differs")
        client.xadd(some, {**fields, b"n": b"7"})
        assert job.told() == (rows, rows, "differs")


@pytest.mark.parametrize("settings", [{"proof": False}, {"maxlen": 100}, {"form": "hash", "key": "row:{n}"}])
def test_what_keeps_no_rows_or_is_not_hashed_is_unproven(tmp_path: Path, valkey: Valkey, settings: dict[str, Any]):
    job = Told(tmp_path, valkey, **settings)
    job.write(pa.record_batch({"n": [1, 2]}))
    assert job.told(3)[2] == "unproven"


def test_the_proof_outlives_a_process_that_dies_in_a_delivery(tmp_path: Path, valkey: Valkey):
    job = Told(tmp_path, valkey)
    job.write(numbers(1, 2, 3))

    def die(step: Step) -> None:
        if step is Step.SEND_AFTER:
            raise KeyboardInterrupt

    with hooked(die), pytest.raises(KeyboardInterrupt):
        job.write(numbers(4, 5, 6))
    job.open()
    assert job.told(0) == (24, 24, "proven")


def test_without_a_decision_log_hashes_are_compared_by_key(tmp_path: Path, valkey: Valkey):
    """With what a stream says of them."""
    Told(tmp_path / "1", valkey, form="hash", key="row:{n}").write(numbers(1, 2, 2))
    Told(tmp_path / "2", valkey, key="source", name="source").write(numbers(1, 2, 3))
    where = ["--source", "redis:source", "--target", "redis:row:{n}", "--key", "n", "--at", f"redis={valkey.url}"]
    mapping = ["--map", "integration.test_redis_sink:only_numbers"]
    done = CliRunner().invoke(app, ["verify", *where, *mapping])
    assert done.exit_code == 1, done.exception
    assert "12 rows expected, 2 found: 10 missing, 0 duplicated, 0 wrong" in done.output


def test_a_list_whose_elements_are_no_text_is_compared_without_a_traceback(tmp_path: Path, valkey: Valkey):
    Told(tmp_path, valkey, key="source").write(numbers(1))
    connect(make(tmp_path, valkey).settings).rpush("list", b'{"n":"\xff"}')
    where = ["--source", "redis:source", "--target", "redis:list", "--at", f"redis={valkey.url}"]
    done = CliRunner().invoke(app, ["verify", *where])
    assert isinstance(done.exception, SystemExit), done.exception


def only_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["n"]).cast(pa.schema([("n", pa.string())]))


def test_what_a_log_that_was_deleted_has_left_goes_in_a_week(tmp_path: Path, valkey: Valkey) -> None:
    """Until then, the marker keeps a delivery that arrives late from being written again."""
    sink = claimed(tmp_path, valkey)
    client, marker = valkey.client(), marker_key(SCOPE)
    sink.ledger().forget(SCOPE._replace(log="another"))
    assert client.ttl(marker) == -1
    sink.ledger().forget(SCOPE)
    assert 604_000 < client.ttl(marker) <= 604_800
    assert [path.name for path in (tmp_path / "log").iterdir() if path.name.endswith(".claim")] == []
