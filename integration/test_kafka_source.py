"""KafkaSource against a real broker, without Spark: what is read, what is never read, what is told when it is gone."""

from __future__ import annotations

import json
import pickle
import re
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from onceward import FileSink, FileSource, KafkaSource
from onceward.connectors.kafka.positions import AtTime
from onceward.core import CheckpointConfig, Pipeline
from onceward.core.errors import ConfigurationError, KafkaError, SourceError
from onceward.core.log import DirectoryStore
from onceward.operations import Log, PipelineState, pipeline_status
from onceward.testing.machine import accepts_connections
from onceward.testing.services import KafkaServer

from .kafka_source_kit import Writer, recreate, rows, values, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.kafka


@pytest.fixture
def writer(kafka: KafkaServer) -> Writer:
    return Writer(kafka.bootstrap_servers)


def texts(*numbers: int) -> list[str]:
    return [str(number) for number in range(*numbers)]


def test_67_the_same_positions_give_the_same_rows_in_whatever_pieces(writer: Writer, topic: Callable[..., str]):
    name = topic(2)
    writer.commit(name, range(30), partition=0)
    writer.abort(name, range(100, 120), partition=0)
    writer.commit(name, range(30, 60), partition=0)
    writer.send(name, range(60, 90), partition=1)
    source = writer.source(name)
    start, end = source.start(), source.latest(source.start())
    whole = sorted(rows(source, source.splits(start, end)))
    assert [value for _, _, value in whole] == [text.encode() for text in texts(90)]
    writer.commit(name, range(1000, 1010), partition=0)
    assert sorted(rows(source, source.splits(start, end))) == whole
    assert sorted(rows(source, source.splits(start, end, parallelism=9))) == whole
    middle = source.latest(start, 40)
    assert middle not in (start, end)
    halves = [*source.splits(start, middle), *source.splits(middle, end)]
    assert sorted(rows(source, halves)) == whole
    elsewhere = pickle.loads(pickle.dumps(source))
    assert sorted(rows(elsewhere, elsewhere.splits(start, end))) == whole


def test_67_a_split_goes_on_from_any_piece(writer: Writer, topic: Callable[..., str]):
    name = topic()
    writer.send(name, range(25_000))
    source = writer.source(name)
    [split] = source.splits(source.start(), source.latest(source.start()))
    first = next(iter(source.read(split)))
    assert first.batch.num_rows == 10_000
    position = source.advance(source.start(), split, first.next)
    assert position == {name: {"0": 10_000}}
    assert values(source, position, {name: {"0": 25_000}}) == texts(10_000, 25_000)


def test_68_an_offset_below_retention_is_an_error_that_names_it(writer: Writer, topic: Callable[..., str]):
    name = topic()
    writer.send(name, range(20))
    writer.delete_before(name, 0, 12)
    source = writer.source(name)
    with pytest.raises(SourceError, match=rf"{name}-0: offsets 5 to 11 are deleted.*failOnDataLoss"):
        source.latest({name: {"0": 5}})


def test_68_records_deleted_after_they_were_planned_are_an_error_too(writer: Writer, topic: Callable[..., str]):
    name = topic()
    writer.send(name, range(20))
    source = writer.source(name)
    splits = source.splits({name: {"0": 5}}, {name: {"0": 20}})
    writer.delete_before(name, 0, 12)
    with pytest.raises(SourceError, match=rf"{name}-0: offsets 5 to 11 are deleted.*wanted were offsets 5 to 19"):
        rows(source, splits)


def test_68_where_losses_are_allowed_the_rest_is_read_and_the_loss_logged(
    writer: Writer, topic: Callable[..., str], caplog: pytest.LogCaptureFixture
):
    name = topic()
    writer.send(name, range(20))
    writer.delete_before(name, 0, 12)
    source = writer.source(name, fail_on_data_loss=False)
    start = {name: {"0": 5}}
    assert values(source, start, source.latest(start)) == texts(12, 20)
    assert f"{name}-0: offsets 5 to 11 are deleted" in caplog.text


def test_68_a_topic_made_anew_is_not_taken_for_the_old_one(writer: Writer, topic: Callable[..., str]):
    name = topic()
    writer.send(name, range(20))
    writer.delete_topic(name)
    wait_until(lambda: not writer.source(name)._find().partitions)
    writer.create_topic(name)
    writer.send(name, range(3))
    with pytest.raises(SourceError, match=rf"{name}-0 ends at offset 3, before 20.*recreated"):
        writer.source(name).latest({name: {"0": 20}})
    lenient = writer.source(name, fail_on_data_loss=False)
    end = lenient.latest({name: {"0": 20}})
    assert values(lenient, {name: {"0": 20}}, end) == texts(3)


def test_68_a_topic_made_anew_is_noticed_while_a_source_watches_it_though_it_has_as_many_records(
    writer: Writer, topic: Callable[..., str]
):
    name = topic()
    writer.send(name, range(20))
    source = writer.source(name)
    position = source.latest(source.start())
    writer.delete_topic(name)
    wait_until(lambda: not source._find().partitions)
    writer.create_topic(name)
    writer.send(name, range(40))
    with pytest.raises(SourceError, match=rf"{name}-0 was deleted and recreated after offset 20"):
        source.latest(position)


def test_68_the_engine_notices_a_topic_made_anew_in_a_later_attempt_too(writer: Writer, topic: Callable[..., str]):
    """Each attempt begins with a share that has seen nothing: the ids are in the position."""
    name = topic()
    writer.send(name, range(20))
    share = writer.source(name).share(0, 1)
    position = share.merge([json.loads(json.dumps(share.latest(share.start())))])
    writer.delete_topic(name)
    wait_until(lambda: not share._find().partitions)
    writer.create_topic(name)
    writer.send(name, range(40))
    for _ in range(2):
        with pytest.raises(SourceError, match=rf"{name}-0 was deleted and recreated after offset 20"):
            writer.source(name).share(0, 1).latest(position)
    lenient = writer.source(name, fail_on_data_loss=False).share(0, 1)
    first = lenient.latest(position)
    end = writer.source(name).share(0, 1).latest(first)
    assert values(lenient, position, first) + values(lenient, first, end) == texts(40)
    assert writer.source(name).share(0, 1).latest(end) == end


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("planned", [True, False])
def test_a_kept_consumer_does_not_wait_for_a_topic_that_was_made_anew(
    writer: Writer, kafka: KafkaServer, topic: Callable[..., str], *, headers: bool, planned: bool
):
    """A restart raises the leader's epoch; the new topic begins at 0, which librdkafka takes for outdated metadata."""
    name = topic()
    writer.send(name, range(5))
    source = writer.source(name, include_headers=headers, timeout=16.0)
    assert values(source, source.start(), {name: {"0": 5}}) == texts(5)
    kafka.kill()
    kafka.start_again()
    assert values(source, source.start(), {name: {"0": 5}}) == texts(5)
    recreate(writer, name)
    writer.send(name, range(10))
    again = writer.source(name, include_headers=headers, timeout=16.0)
    if planned:  # else the id is unknown, as in Spark's replay of a batch: only missing records show the change
        again.start()
    began = time.monotonic()
    assert values(again, {name: {"0": 0}}, {name: {"0": 10}}) == texts(10)
    assert time.monotonic() - began < (4 if planned else 12)


@pytest.mark.parametrize("lenient", [False, True])
def test_68_a_range_of_a_topic_that_was_made_anew_after_it_was_planned_does_not_come(
    writer: Writer, topic: Callable[..., str], caplog: pytest.LogCaptureFixture, *, lenient: bool
):
    name = topic()
    writer.send(name, range(20))
    source = writer.source(name, fail_on_data_loss=not lenient, timeout=16.0)
    splits = source.splits(source.start(), {name: {"0": 20}})
    recreate(writer, name)
    writer.send(name, range(100, 103))
    told = rf"{name}-0 was deleted and recreated after offset \d+ was reached; wanted were offsets \d+ to 19"
    if lenient:
        rows(source, splits)
        assert re.search(told, caplog.text)
        assert values(source, {name: {"0": 20}}, source.latest({name: {"0": 20}})) == texts(100, 103)
    else:
        with pytest.raises(SourceError, match=told):
            rows(source, splits)


def test_what_the_options_no_longer_select_is_not_called_lost(
    writer: Writer, topic: Callable[..., str], caplog: pytest.LogCaptureFixture
):
    old, new = topic(), topic()
    writer.send(old, range(20))
    writer.send(new, range(3))
    position = {old: {"0": 5}}
    with pytest.raises(ConfigurationError, match=rf"has read {old}-0, which its options no longer select"):
        writer.source(new).latest(position)
    lenient = writer.source(new, fail_on_data_loss=False)
    assert lenient.latest(position) == {new: {"0": 3}}
    assert "lost" not in caplog.text


def test_68_a_deleted_topic_is_an_error_or_left_out(writer: Writer, topic: Callable[..., str]):
    kept, name = topic(prefix="del"), topic(prefix="del")
    writer.send(name, range(20))
    writer.send(kept, range(2))
    strict, lenient = (writer.source(kept, name, fail_on_data_loss=fail) for fail in (True, False))
    position = strict.latest(strict.start())
    [split] = lenient.splits({name: {"0": 0}}, {name: {"0": 20}})
    writer.delete_topic(name)
    wait_until(lambda: len(lenient._find().partitions) == 1)
    with pytest.raises(SourceError, match=f"{name}-0 was deleted"):
        strict.latest(position)
    assert lenient.latest(position) == {kept: {"0": 2}}
    assert rows(lenient, [split]) == []


def test_70_a_new_partition_and_a_new_topic_are_read_from_their_beginning(writer: Writer, topic: Callable[..., str]):
    name = topic(prefix="grow")
    writer.send(name, range(5))
    source = writer.source(pattern=f"{re.escape(name)}.*", starting="latest")
    position = source.start()
    assert position == {name: {"0": 5}}
    assert source.latest(position) == position
    writer.add_partitions(name, 2)
    writer.create_topic(f"{name}-more")
    wait_until(lambda: len(source._find().partitions) == 3)
    writer.send(name, [7], partition=1)
    writer.send(f"{name}-more", [8])
    end = source.latest(position)
    assert end == {name: {"0": 5, "1": 1}, f"{name}-more": {"0": 1}}
    assert sorted(values(source, position, end)) == ["7", "8"]


def test_a_pattern_matches_parts_of_names_and_none_of_kafkas_own_topics(writer: Writer, topic: Callable[..., str]):
    name = topic(prefix="whole")
    other = f"{name}-x"
    writer.create_topic(other)
    assert writer.source(pattern=f"^{re.escape(name)}$").start() == {name: {"0": 0}}
    assert writer.source(pattern=re.escape(name[1:])).start() == {name: {"0": 0}, other: {"0": 0}}
    found = writer.source(pattern=".*").start()
    assert not {"__consumer_offsets", "__transaction_state"} & found.keys()


def test_reading_stops_at_the_first_open_transaction_and_goes_on_after_it(writer: Writer, topic: Callable[..., str]):
    name = topic()
    source = writer.source(name)
    writer.commit(name, range(3))
    with writer.transaction(name, range(3, 5)) as transaction:
        writer.commit(name, range(5, 7))
        start = source.start()
        held_back = source.latest(start)
        assert held_back == {name: {"0": 4}}
        assert values(source, start, held_back) == texts(3)
        transaction.commit()
    end = source.latest(held_back)
    assert values(source, held_back, end) == texts(3, 7)


def test_aborted_records_are_never_read(writer: Writer, topic: Callable[..., str]):
    name = topic()
    writer.abort(name, range(5))
    writer.commit(name, range(5, 8))
    writer.abort(name, range(8, 10))
    source = writer.source(name)
    end = source.latest(source.start())
    assert end == {name: {"0": 13}}
    assert values(source, source.start(), end) == texts(5, 8)


def test_read_uncommitted_reads_what_is_open_and_aborted(writer: Writer, topic: Callable[..., str]):
    name = topic()
    writer.abort(name, range(2))
    with writer.transaction(name, range(2, 4)):
        source = writer.source(name, isolation="read_uncommitted")
        assert values(source, source.start(), source.latest(source.start())) == texts(4)


def test_a_range_that_holds_nothing_readable_ends_soon(writer: Writer, topic: Callable[..., str]):
    """Control records, aborted data, an open transaction behind: no record ever tells that the end is reached."""
    name = topic()
    writer.commit(name, range(3))
    writer.abort(name, range(3, 40))
    with writer.transaction(name, [99]):
        source = writer.source(name)
        rows(source, source.splits({name: {"0": 0}}, {name: {"0": 2}}))
        for first in (3, 4, 20, 41):
            began = time.monotonic()
            assert rows(source, source.splits({name: {"0": first}}, {name: {"0": 42}})) == []
            assert time.monotonic() - began < 5


def test_compacted_away_offsets_do_not_stop_a_range(writer: Writer, topic: Callable[..., str]):
    """A gap in the middle, made by a transaction that was aborted, and plain records around it."""
    name = topic()
    writer.send(name, range(5))
    writer.abort(name, range(100, 150))
    writer.send(name, range(5, 8))
    source = writer.source(name)
    for first, last in ((0, 59), (3, 40), (30, 58), (56, 59)):
        found = [offset for _, offset, _ in rows(source, source.splits({name: {"0": first}}, {name: {"0": last}}))]
        assert found == [offset for offset in (*range(5), 56, 57, 58) if first <= offset < last]


def test_data_that_do_not_come_are_an_error_and_not_a_hang(writer: Writer, kafka: KafkaServer, topic):
    name = topic()
    writer.send(name, range(5))
    source = writer.source(name, timeout=2.0)
    splits = source.splits(source.start(), source.latest(source.start()))
    assert len(rows(source, splits)) == 5
    kafka.pause()
    try:
        began = time.monotonic()
        with pytest.raises(SourceError, match=rf"nothing came from {name}-0 .* for 2 s: offsets 0 to 4 are missing"):
            rows(source, splits)
        assert time.monotonic() - began < 10
    finally:
        kafka.resume()
    assert len(rows(writer.source(name), splits)) == 5


@pytest.mark.parametrize("fault", ["pause", pytest.param("kill", marks=pytest.mark.nightly)])
def test_a_source_that_hangs_is_told_in_the_log_and_in_the_status_until_it_answers_again(  # noqa: PLR0917 - fixtures
    writer: Writer,
    kafka: KafkaServer,
    topic: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    fault: str,
):
    name = topic()
    writer.send(name, range(5))
    pipeline = Pipeline("paid", checkpointing=CheckpointConfig(interval=0.3), store=tmp_path / "log")
    orders = pipeline.source(writer.source(name), uid="orders")
    orders.map(lambda record: {"n": int(record["value"])}, schema=pa.schema([("n", pa.int64())])).sink(
        FileSink("numbers", tmp_path / "numbers")
    )
    log, title = Log("paid", DirectoryStore(tmp_path / "log")), f"orders (topic {name} at {kafka.bootstrap_servers})"
    job = pipeline.start()
    try:
        wait_until(lambda: pipeline_status(log).epoch is not None)
        assert pipeline_status(log).state is PipelineState.RUNNING
        kafka.pause() if fault == "pause" else kafka.kill()
        wait_until(lambda: pipeline_status(log).source == title, seconds=40)
        told = pipeline_status(log)
        assert (told.state, f"source {title} has not answered for" in told.what) == (PipelineState.SILENT, True)
        assert kafka.bootstrap_servers in str(told.error)
        kafka.resume() if fault == "pause" else kafka.start()
        kafka.wait_ready()
        wait_until(lambda: pipeline_status(log).source is None, seconds=60)
        writer.send(name, range(5, 10))
        shown = FileSource(tmp_path / "numbers", schema=pa.schema([("n", pa.int64())]))
        wait_until(lambda: len(rows_of(shown)) == 10, seconds=60)
        wait_until(lambda: any(" answers again, after " in line for line in caplog.messages), seconds=20)
    finally:
        job.stop()
        job.wait(30)
    assert rows_of(shown) == list(range(10))
    lines = [line for line in caplog.messages if line.startswith(f"source {title} of pipeline paid")]
    assert " has not answered for 1" in lines[0]
    assert kafka.bootstrap_servers in lines[0]
    assert lines[-1].startswith(f"source {title} of pipeline paid answers again, after ")


def rows_of(source: FileSource) -> list[int]:
    start = source.start()
    splits = source.splits(start, source.latest(start))
    return sorted(n for split in splits for piece in source.read(split) for n in piece.batch["n"].to_pylist())


def begin(source: KafkaSource):
    source.start()


@pytest.mark.parametrize(
    ("look", "address", "reason"),
    [
        (KafkaSource.validate, "127.0.0.1:1", "Connection refused"),
        (begin, "nowhere.invalid:9092", "Failed to resolve"),
    ],
)
def test_a_wrong_address_is_said_within_ten_seconds_and_why(look, address: str, reason: str):
    began = time.monotonic()
    with pytest.raises(SourceError, match=f"no broker answers at {address}: .*{reason}"):
        look(KafkaSource(bootstrap_servers=address, topics=["t"]))
    assert time.monotonic() - began < 10


def test_brokers_that_cannot_be_reached_where_they_say_they_are_are_told_too(tmp_path):
    """The address answers and names another one: the usual mistake with containers."""
    lost = {"advertised.listeners": "PLAINTEXT://nowhere.invalid:9092"}
    server = KafkaServer(tmp_path, config=lost)
    server.start()
    try:
        wait_until(lambda: accepts_connections(server.settings["port"]), seconds=60)
        with pytest.raises(SourceError, match=r"no broker answers at .*nowhere\.invalid.*Failed to resolve"):
            KafkaSource(bootstrap_servers=server.bootstrap_servers, topics=["t"]).validate()
    finally:
        server.delete()


@pytest.mark.parametrize("wrong", [{"fetch.min.byte": "1"}, {"fetch.min.bytes": "few"}])
def test_settings_that_librdkafka_refuses_are_said_before_anything_is_read(
    writer: Writer, topic, wrong: dict[str, str]
):
    source = writer.source(topic(), config=wrong)
    with pytest.raises(ConfigurationError, match=rf'"{next(iter(wrong))}"'):
        source.validate()


def test_a_broker_that_restarts_is_waited_for(writer: Writer, kafka: KafkaServer, topic):
    name = topic()
    writer.send(name, range(5))
    source = writer.source(name, timeout=60.0)
    start, end = source.start(), source.latest(source.start())
    kafka.kill()
    kafka.start()
    assert source.latest(start) == end
    assert values(source, start, end) == texts(5)


def test_null_keys_values_and_headers_arrive_as_they_are(writer: Writer, topic: Callable[..., str]):
    name = topic()
    writer.send(name, [None], key=b"tombstone", headers=[("a", b"1"), ("a", None), ("b", b"")], timestamp=1234)
    writer.send(name, ["x"])
    source = writer.source(name, include_headers=True)
    [split] = source.splits(source.start(), source.latest(source.start()))
    [piece] = source.read(split)
    one, two = piece.batch.to_pylist()
    assert (one["key"], one["value"], one["timestamp"]) == (b"tombstone", None, datetime.fromtimestamp(1.234, UTC))
    assert [(h["key"], h["value"]) for h in one["headers"]] == [("a", b"1"), ("a", None), ("b", b"")]
    assert (two["key"], two["value"], two["headers"]) == (None, b"x", None)
    assert piece.batch.schema == source.schema


@pytest.mark.parametrize("include_headers", [False, True])
def test_a_timestamp_beyond_microseconds_is_an_error_that_says_how_to_read_on(
    writer: Writer, topic: Callable[..., str], include_headers: bool
):
    """One record with nanoseconds for milliseconds stopped a source for good."""
    name = topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
    writer.send(name, ["a"])
    writer.send(name, ["b"], timestamp=1_790_000_000_000_000_000)
    writer.send(name, ["c"])
    source = writer.source(name, include_headers=include_headers)
    [split] = source.splits(*source.range())
    with pytest.raises(SourceError, match=r"offset 1 of .* has a timestamp that no column can hold.*invalidTimestamps"):
        rows(source, [split])
    reading = writer.source(name, include_headers=include_headers, invalid_timestamps="null")
    found = [row for piece in reading.read(split) for row in piece.batch.to_pylist()]
    assert [row["value"] for row in found] == [b"a", b"b", b"c"]
    assert [row["timestamp"] is None for row in found] == [False, True, False]


def test_starting_points(writer: Writer, topic: Callable[..., str]):
    name = topic(2)
    writer.send(name, range(3), partition=0, timestamp=1_000_000)
    writer.send(name, range(3), partition=0, timestamp=2_000_000)
    writer.send(name, range(2), partition=1, timestamp=2_500_000)
    starts = {
        "earliest": [0, 0],
        "latest": [6, 2],
        (("0", 4), ("1", -2)): [4, 0],
        (("0", -1), ("1", 1)): [6, 1],
    }
    for given, expected in starts.items():
        starting = given if isinstance(given, str) else {name: dict(given)}
        assert list(writer.source(name, starting=starting).start()[name].values()) == expected
    moment = datetime.fromtimestamp(2000, UTC)
    assert writer.source(name, starting=moment).start() == {name: {"0": 3, "1": 0}}
    late = AtTime(milliseconds=2_200_000)
    with pytest.raises(SourceError, match=rf"no record of {name}-0 is as new"):
        writer.source(name, starting=late).start()
    assert writer.source(name, starting=AtTime(2_200_000, or_latest=True)).start() == {name: {"0": 6, "1": 0}}


def test_a_start_beyond_the_end_is_told_as_that_or_begins_at_the_end(writer: Writer, topic: Callable[..., str]):
    name = topic()
    writer.commit(name, range(3))
    with writer.transaction(name, range(3, 5)) as transaction:  # offsets 4 and 5: they exist, and may be given
        assert writer.source(name, starting={name: {"0": 6}}).start() == {name: {"0": 6}}
        with pytest.raises(ConfigurationError, match=rf"{name}-0 ends at offset 6, and 7 was given"):
            writer.source(name, starting={name: {"0": 7}}).start()
        lenient = writer.source(name, starting={name: {"0": 7}}, fail_on_data_loss=False)
        start = lenient.start()
        assert start == {name: {"0": 4}}
        transaction.commit()
    assert values(lenient, start, lenient.latest(start)) == texts(3, 5)


def test_offsets_that_leave_partitions_out_are_refused(writer: Writer, topic: Callable[..., str]):
    name = topic(2)
    with pytest.raises(ConfigurationError, match=f"not given: {name}-1"):
        writer.source(name, starting={name: {"0": 0}}).start()


def test_a_topic_that_is_not_there_is_named_and_not_created(writer: Writer):
    with pytest.raises(SourceError, match="has no nowhere: create it first"):
        writer.source("nowhere").start()
    assert "nowhere" not in writer.admin.list_topics(timeout=10).topics


def test_assigned_partitions_only_are_read(writer: Writer, topic: Callable[..., str]):
    name = topic(3)
    for number in range(3):
        writer.send(name, [number], partition=number)
    source = writer.source(assign={name: [0, 2]})
    assert values(source, source.start(), source.latest(source.start())) == ["0", "2"]


def test_subtasks_share_the_partitions_and_their_positions_move_to_another_number(writer: Writer, topic):
    """What the embedded engine does with a source: read in shares, store positions, restore with other parallelism."""
    name = topic(5)
    for number in range(5):
        writer.send(name, range(10 * number, 10 * number + 10), partition=number)
    source = writer.source(name)
    found, stored = [], []
    for part in (source.share(i, 2) for i in range(2)):
        start = part.start()
        end = part.latest(start, 10)
        found += values(part, start, end)
        stored.append(end)
    assert 0 < len(found) < 50
    for part in (source.share(i, 3) for i in range(3)):
        start = part.merge(stored)
        found += values(part, start, part.latest(start))
    assert sorted(found) == sorted(texts(50))


def test_69_offsets_are_published_to_a_group_that_nobody_joins(writer: Writer, topic: Callable[..., str]):
    name = topic(2)
    source = writer.source(name, group="published")
    consumer = Consumer({"bootstrap.servers": writer.servers, "group.id": "published"})
    wanted = [TopicPartition(name, 0), TopicPartition(name, 1)]
    assert [p.offset for p in consumer.committed(wanted, timeout=30)] == [-1001, -1001]
    source.publish({name: {"0": 3, "1": 4}})
    source.publish({name: {"0": 5, "1": 4}})
    assert [p.offset for p in consumer.committed(wanted, timeout=30)] == [5, 4]
    consumer.close()


def test_69_offsets_are_published_after_a_restart_of_the_broker_too(writer: Writer, kafka: KafkaServer, topic):
    """By the client that published before: librdkafka's never again gets an answer of that group's coordinator."""
    name, group = topic(), f"again-{uuid.uuid4().hex}"
    source = writer.source(name, group=group)
    source.publish({name: {"0": 3}})
    kafka.kill()
    kafka.start()
    kafka.wait_ready()
    source.publish({name: {"0": 5}})
    consumer = Consumer({"bootstrap.servers": writer.servers, "group.id": group})
    assert [at.offset for at in consumer.committed([TopicPartition(name, 0)], timeout=30)] == [5]
    consumer.close()


def test_publishing_to_a_group_with_live_members_is_refused_in_words(writer: Writer, topic: Callable[..., str]):
    name = topic()
    consumer = Consumer({"bootstrap.servers": writer.servers, "group.id": "busy"})
    consumer.subscribe([name])
    wait_until(lambda: consumer.poll(0.2) is None and bool(consumer.assignment()))
    with pytest.raises(KafkaError, match="cannot publish offsets to consumer group busy"):
        writer.source(name, group="busy").publish({name: {"0": 0}})
    consumer.close()


def test_a_broker_that_is_away_is_told_when_offsets_are_published():
    with pytest.raises(KafkaError, match="group g"):
        KafkaSource(bootstrap_servers="127.0.0.1:1", topics=["t"], group="g").publish({"t": {"0": 1}})


def test_two_readers_in_one_process_do_not_disturb_each_other(writer: Writer, topic: Callable[..., str]):
    name = topic(2)
    writer.send(name, range(15_000), partition=0)
    writer.send(name, range(15_000, 30_000), partition=1)
    source = writer.source(name)
    first, second = (source.read(split) for split in source.splits(source.start(), source.latest(source.start())))
    counts = [(one.batch.num_rows, two.batch.num_rows) for one, two in zip(first, second, strict=True)]
    assert counts == [(10_000, 10_000), (5_000, 5_000)]


def test_a_reader_that_is_given_up_leaves_the_next_one_its_range(writer: Writer, topic: Callable[..., str]):
    name = topic()
    writer.send(name, range(30_000))
    source = writer.source(name)
    for first in (0, 12_345, 0):
        reading = source.read(source.splits({name: {"0": first}}, {name: {"0": 30_000}})[0])
        assert next(reading).batch.column("offset")[0].as_py() == first
        reading.close()
