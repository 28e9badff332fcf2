"""Options of the Kafka source, in Spark's spelling, and the Python constructor: what is taken and what is refused."""

from __future__ import annotations

import pickle
import re
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from onceward import KafkaSource
from onceward.connectors.kafka import admin, topic_metadata
from onceward.connectors.kafka.consumed_batches import to_batch
from onceward.connectors.kafka.positions import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTime,
    HeldOffsets,
    Partition,
    parse_bound,
    spread,
)
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.connectors.kafka.topic_metadata import Found, Lookup, bound_offsets
from onceward.connectors.spark.read.any_source import SourceStreamReader
from onceward.connectors.spark.read.kafka_offsets import batch_source, order_warning, stream_source
from onceward.connectors.spark.session.query_plan import StreamingSource
from onceward.core.contract.source import Split
from onceward.core.errors import ConfigurationError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVERS = {"kafka.bootstrap.servers": "broker:9092"}
ORDERS = {**SERVERS, "subscribe": "orders"}


def test_options_are_read_without_regard_to_case():
    source = stream_source({**SERVERS, "SUBSCRIBE": "b, a", "MaxOffsetsPerTrigger": "10", "includeheaders": "TRUE"})
    assert source.selection.topics == ("a", "b")
    assert source.max_offsets_per_trigger == 10
    assert source.include_headers


def test_timestamps_that_no_column_holds_may_be_null():
    assert stream_source(ORDERS).invalid_timestamps == "error"
    assert stream_source({**ORDERS, "invalidTimestamps": "null"}).invalid_timestamps == "null"
    with pytest.raises(ConfigurationError, match="invalid_timestamps 'skip' is unknown: give one of error, null"):
        stream_source({**ORDERS, "invalidTimestamps": "skip"})


def test_underscores_make_no_difference_and_an_option_is_given_in_one_spelling():
    source = stream_source({**SERVERS, "subscribe_pattern": "a", "starting_timestamp": "7", "min_partitions": "2"})
    assert (source.selection.pattern, source.starting, source.min_partitions) == ("a", AtTime(milliseconds=7), 2)
    for one, other in (("subscribePattern", "subscribe_pattern"), ("minPartitions", "min_partitions")):
        with pytest.raises(ConfigurationError, match=f"options {one.lower()} and {other} are two spellings of one"):
            stream_source({**SERVERS, "subscribePattern": "a", one: "1", other: "1"})


def test_a_pattern_matches_a_part_of_a_name_as_in_sparks_own_source():
    selection = KafkaSource(bootstrap_servers="b:1", pattern="order").selection
    assert [name for name in ("orders", "my-order", "paid") if selection.takes(Partition(name, 0))] == [
        "orders",
        "my-order",
    ]
    assert not KafkaSource(bootstrap_servers="b:1", pattern="^order$").selection.takes(Partition("orders", 0))


@pytest.mark.parametrize(("max_rows", "limit"), [(None, 7), (3, 3)])
def test_the_limit_of_a_source_holds_in_read_stream_too(max_rows: int | None, limit: int):
    source = KafkaSource(bootstrap_servers="b:1", topics=["a"], max_offsets_per_trigger=7)
    assert SourceStreamReader(source, max_rows)._max_rows == limit


def test_a_pattern_that_is_none_is_refused_by_the_source():
    with pytest.raises(ConfigurationError, match=r"pattern .* '\[' is not a valid regular expression"):
        KafkaSource(bootstrap_servers="b:1", pattern="[")


def test_streams_begin_at_latest_and_batches_cover_everything_as_in_spark():
    assert stream_source(ORDERS).starting == AtOffsets(default=LATEST)
    batch = batch_source(ORDERS)
    assert (batch.starting, batch.ending) == (AtOffsets(default=EARLIEST), AtOffsets(default=LATEST))


def test_read_committed_is_the_default_and_kafka_isolation_level_overrides_it():
    assert stream_source(ORDERS).settings["isolation.level"] == "read_committed"
    other = stream_source({**ORDERS, "kafka.isolation.level": "read_uncommitted"})
    assert other.settings["isolation.level"] == "read_uncommitted"


def test_unknown_options_are_refused_by_name():
    with pytest.raises(ConfigurationError, match=r"unknown options .*maxoffsetpertrigger.*subscibe"):
        stream_source({**SERVERS, "subscibe": "orders", "maxOffsetPerTrigger": "1"})


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscibe", "subscribe"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafkaconsumer.polltimeout", "kafkaConsumer.pollTimeoutMs"),
        ("endingTimestamps", "endingTimestamp"),
    ],
)
def test_of_an_unknown_option_it_is_said_which_one_was_meant_and_which_there_are(option: str, meant: str):
    with pytest.raises(ConfigurationError, match=rf"did you mean {re.escape(meant)}\?") as refused:
        stream_source({**SERVERS, option: "1"})
    listed = str(refused.value).partition(" takes ")[2].split(", ")
    assert {"kafka.bootstrap.servers", "kafka.*", "subscribe", "startingOffsets", "minPartitions", meant} <= {*listed}


def test_what_spark_adds_by_itself_is_tolerated():
    stream_source({**ORDERS, "path": "/x", "checkpointLocation": "/y"})


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(name: str):
    with pytest.raises(ConfigurationError, match=f"{name} are not for streaming"):
        stream_source({**ORDERS, name: "latest"})


def test_a_batch_has_no_trigger():
    with pytest.raises(ConfigurationError, match="maxOffsetsPerTrigger are not for batch"):
        batch_source({**ORDERS, "maxOffsetsPerTrigger": "10"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "exactly one of"),
        ({}, "exactly one of"),
        ({"subscribe": " , "}, "topics is empty"),
        ({"subscribePattern": "("}, "not a valid regular expression"),
        ({"assign": '{"a": 1}'}, "shape"),
        ({"assign": "{}"}, "no partition"),
        ({"assign": "a"}, "JSON"),
        ({"subscribe": "a", "startingOffsets": "erliest"}, "earliest, latest or JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "-1"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": 1.5}}'}, "shape"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "milliseconds"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        ({"subscribe": "a", "kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({"subscribe": "a", "kafka.enable.auto.commit": "true"}, "enable.auto.commit"),
    ],
)
def test_wrong_options_are_refused_with_words(options: dict[str, str], words: str):
    with pytest.raises(ConfigurationError, match=words):
        stream_source({**SERVERS, **options})


def test_an_end_of_earliest_is_refused():
    with pytest.raises(ConfigurationError, match="cannot be earliest"):
        batch_source({**ORDERS, "endingOffsets": '{"orders": {"0": -2}}'})


@pytest.mark.parametrize("start", ["latest", "LATEST ", '{"orders": {"0": 5, "1": -1}}'])
def test_a_batch_that_starts_at_the_end_is_refused_as_by_sparks_own_source(start: str):
    with pytest.raises(ConfigurationError, match="startingOffsets cannot be latest"):
        batch_source({**ORDERS, "startingOffsets": start})
    stream_source({**ORDERS, "startingOffsets": start})


def test_sparks_order_of_starting_points_is_time_then_times_then_offsets():
    options = {**ORDERS, "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"orders": {"0": 5}}'}
    assert stream_source(options).starting == AtTime(of=((Partition("orders", 0), 5),))
    both = {**options, "startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "latest"}
    assert stream_source(both).starting == AtTime(milliseconds=7, or_latest=True)


def test_a_time_without_zone_is_refused():
    with pytest.raises(ConfigurationError, match="zone"):
        parse_bound(datetime(2026, 1, 1), "starting")  # noqa: DTZ001
    assert parse_bound(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "starting") == AtTime(milliseconds=1000)


def test_offsets_must_name_every_partition():
    given = parse_bound({"a": {"0": 1, "5": 2}}, "starting")
    with pytest.raises(ConfigurationError, match=r"not given: a-1; not subscribed or not there: a-5"):
        spread(given, [Partition("a", 0), Partition("a", 1)], "startingOffsets")


@pytest.mark.parametrize("option", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp"])
def test_a_time_that_is_missing_is_called_as_its_option(option: str):
    given: Any = AtTime(of=((Partition("a", 0), 5),))
    with pytest.raises(ConfigurationError, match=rf"^{option} must name .*not given: a-1\)\. Give each a time"):
        bound_offsets(given, [Partition("a", 0), Partition("a", 1)], None, start=option[0] == "s")  # type: ignore[arg-type]


@pytest.mark.parametrize("starting", ["earliest", "latest", {"t": {"0": 50}}, {"t": {"0": -1}}])
def test_a_first_start_is_within_what_there_is(monkeypatch: pytest.MonkeyPatch, starting: Any):
    assert a_source(monkeypatch, "id", starting=starting).start()["t"]["0"] in {0, 50}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"starting": {"t": {"0": 51}}}, r"startingOffsets \(starting\) .*t-0 ends at offset 50, and 51 was given"),
        ({"ending": {"t": {"0": 99}}}, r"endingOffsets \(ending\) .*t-0 ends at offset 50, and 99 was given"),
    ],
)
def test_an_offset_beyond_the_end_is_no_lost_record(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, options: dict[str, Any], told: str
):
    """It was called a topic that was recreated, or waited for and called a broker that is down."""
    with pytest.raises(ConfigurationError, match=told):
        a_source(monkeypatch, "id", **{"ending": "latest", **options}).range()
    start, end = a_source(monkeypatch, "id", fail_on_data_loss=False, **{"ending": "latest", **options}).range()
    assert (start, end) == ({"t": {"0": 50 if "starting" in options else 0}}, {"t": {"0": 50}})
    assert re.search(told, caplog.text)


def test_a_source_survives_pickling_and_shows_no_password():
    options = {"sasl.mechanism": "PLAIN", "security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": "pw!"}
    source = KafkaSource(bootstrap_servers="b:1", topics=["t"], config=options)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.settings == source.settings
    assert "pw!" not in repr(source.settings)


def test_a_share_merges_the_positions_of_other_shares_less_what_is_not_its_own():
    source = KafkaSource(bootstrap_servers="b:1", topics=["t"])
    stored = [{"t": {"0": 1, "2": 3}}, {"t": {"1": 2}}]
    shares = [source.share(i, 3).merge(stored) for i in range(3)]
    assert source.merge(stored) == {"t": {"0": 1, "1": 2, "2": 3}}
    assert sorted((n, o) for share in shares for n, o in share.get("t", {}).items()) == [("0", 1), ("1", 2), ("2", 3)]


def a_source(monkeypatch: pytest.MonkeyPatch, id_: str, **options: Any) -> KafkaSource:
    """A source of one partition with 50 records, of a topic with this id."""
    source = KafkaSource(bootstrap_servers="b:1", topics=["t"], **options)
    found = Found((Partition("t", 0),), {"t": id_}, ())
    monkeypatch.setattr(KafkaSource, "_find", lambda _: found)
    named = {EARLIEST: 0, LATEST: 50}
    lookup = SimpleNamespace(
        held=lambda *_: {Partition("t", 0): HeldOffsets(0, 50, 50)},
        offsets=lambda asked: [{partition: named.get(offset, offset) for partition, offset in asked.items()}],
    )
    monkeypatch.setattr(KafkaSource, "_lookup", lambda _: lookup)
    return source


def test_the_engines_position_says_which_topic_it_is_of(monkeypatch: pytest.MonkeyPatch):
    """Each attempt has a new share, which has seen nothing: the second one must not read the new topic as the old."""
    share = a_source(monkeypatch, "old").share(0, 1)
    position = share.latest({"t": {"0": 20}})  # of an older version: without ids
    assert position == {"t": {"0": 50}, "": {"t": "old"}}
    assert share.advance(position, Split("t-0", 50, 60), 55) == {"t": {"0": 55}, "": {"t": "old"}}
    stored = share.share(0, 1).merge([position])
    for _ in range(2):
        with pytest.raises(SourceError, match="t-0 was deleted and recreated after offset 50"):
            a_source(monkeypatch, "new").share(0, 1).latest(stored)
    lenient = a_source(monkeypatch, "new", fail_on_data_loss=False).share(0, 1).latest(stored)
    assert lenient == {"t": {"0": 49}, "": {"t": "new"}}  # before 50: from the beginning of the new topic
    assert a_source(monkeypatch, "new").latest({"t": {"0": 20}}) == {"t": {"0": 50}}  # Spark's


def answering(monkeypatch: pytest.MonkeyPatch, answers: Iterator[Any]) -> None:
    """Have brokers answer each question for an offset with the next of these: an offset, or an error."""

    def result() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    class Client:
        def list_offsets(self, specs: Any, **_: Any) -> Any:
            return {at: SimpleNamespace(result=result) for at in specs}

        def poll(self, _seconds: float) -> None:
            """Nothing is told."""

        def list_topics(self, **_: Any) -> None:
            """Nothing is looked up."""

    monkeypatch.setattr(admin, "make_client", lambda *_, **__: Client())
    monkeypatch.setattr(admin, "PAUSE_SECONDS", 0)


@pytest.mark.parametrize("times", [1, 3])
def test_what_librdkafka_says_of_a_partition_without_a_leader_is_no_offset(monkeypatch: pytest.MonkeyPatch, times: int):
    """It was taken for the end of the partition: records that are there seemed to be lost (seen in an election)."""
    unknown = SimpleNamespace(offset=OFFSET_INVALID)
    answering(monkeypatch, iter([unknown] * times + [SimpleNamespace(offset=7), SimpleNamespace(offset=-1)]))
    lookup = Lookup(KafkaSettings(f"c:{times}"), committed=True, retry_seconds=5)
    assert lookup.offsets({Partition("t", 0): LATEST}) == [{Partition("t", 0): 7}]
    assert lookup.at_times({Partition("t", 0): 5}) == {Partition("t", 0): LATEST}  # no record is so new


@pytest.mark.parametrize("times", [1, 2])
def test_a_broker_may_not_have_heard_of_a_partition_yet(monkeypatch: pytest.MonkeyPatch, times: int):
    unheard = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    answering(monkeypatch, iter([unheard] * times + [SimpleNamespace(offset=7)]))
    lookup = Lookup(KafkaSettings(f"b:{times}"), committed=True, retry_seconds=5)
    if times == 1:
        assert lookup.offsets({Partition("t", 0): LATEST}) == [{Partition("t", 0): 7}]
    else:  # it has had the time to hear of it
        monkeypatch.setattr(topic_metadata, "HEARD_SECONDS", -1)
        with pytest.raises(SourceError, match=r"cannot ask for offsets of t: .*Unknown topic or partition"):
            lookup.offsets({Partition("t", 0): LATEST})


def test_columns_are_those_that_spark_expects():
    """Spark compares the schema of the first batch with its own, types and names of list elements included."""
    types = pytest.importorskip("pyspark.sql.types")
    pandas = pytest.importorskip("pyspark.sql.pandas.types")
    plain = {
        "key": types.BinaryType(),
        "value": types.BinaryType(),
        "topic": types.StringType(),
        "partition": types.IntegerType(),
        "offset": types.LongType(),
        "timestamp": types.TimestampType(),
        "timestampType": types.IntegerType(),
    }
    pair = [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    headers = types.StructField("headers", types.ArrayType(types.StructType(pair)))
    columns = [types.StructField(name, kind) for name, kind in plain.items()]
    for more in ([], [headers]):
        source = KafkaSource(bootstrap_servers="b:1", topics=["t"], include_headers=bool(more))
        assert pandas.from_arrow_schema(source.schema) == types.StructType([*columns, *more])
        assert pandas.to_arrow_schema(types.StructType([*columns, *more]), timezone="UTC").equals(source.schema)


class Message(SimpleNamespace):
    """What a message of confluent-kafka answers."""

    def key(self):
        return self.k

    def value(self):
        return self.v

    def offset(self):
        return self.o

    def timestamp(self):
        return self.t

    def headers(self):
        return self.h


def test_nulls_headers_and_kinds_of_timestamps_become_columns():
    messages = [
        Message(k=None, v=b"1", o=7, t=(1, 1500), h=None),
        Message(k=b"", v=None, o=9, t=(2, 0), h=[("a", b"x"), ("a", None)]),
        Message(k=b"k", v=b"", o=10, t=(0, -1), h=[]),
    ]
    batch = to_batch(Partition("t", 3), messages, include_headers=True)
    assert batch.column("key").to_pylist() == [None, b"", b"k"]
    assert batch.column("value").to_pylist() == [b"1", None, b""]
    assert batch.column("offset").to_pylist() == [7, 9, 10]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_500_000, 0, -1000]
    assert batch.column("timestampType").to_pylist() == [0, 1, -1]
    assert batch.column("topic").to_pylist() == ["t"] * 3
    assert batch.column("partition").to_pylist() == [3] * 3
    pairs = [{"key": "a", "value": b"x"}, {"key": "a", "value": None}]
    assert batch.column("headers").to_pylist() == [None, pairs, None]


MOST, LEAST = "maxrecordsperpartition", "minpartitions"


@pytest.mark.parametrize("name", ["kafka", "onceward-kafka"])
@pytest.mark.parametrize(
    ("options", "writers", "plans", "option"),
    [
        ({MOST: "100"}, None, ["Project"], "maxRecordsPerPartition"),
        ({MOST: "100"}, "auto", [""], "maxRecordsPerPartition"),
        ({LEAST: "2"}, 4, [""], "minPartitions"),
        ({LEAST: "1"}, None, [""], ""),
        ({}, None, [""], ""),
        ({MOST: "100", LEAST: "9"}, 1, [""], ""),
        ({MOST: "100"}, None, ["Project Sort RepartitionByExpression"], ""),
        ({MOST: "100"}, None, ["Aggregate"], ""),
        ({MOST: "100"}, None, ["RepartitionByExpression"], "maxRecordsPerPartition"),
        ({MOST: "100"}, None, ["Sort", "Project"], "maxRecordsPerPartition"),
    ],
)
def test_a_query_warns_of_lost_order_if_several_tasks_read_one_partition(
    name: str, options: dict[str, str], writers: Any, plans: list[str], option: str
):
    sources = [StreamingSource("rate", {LEAST: "7"}), StreamingSource(name, options)]
    message = order_warning(sources, lambda: map(str.split, plans), writers)
    assert message.startswith(f"{option} lets several tasks read one Kafka partition") if option else not message
