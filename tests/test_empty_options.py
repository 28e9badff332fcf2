"""No option of any way of writing may be empty, unknown, or belong to another way."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructType

from onceward import (
    FileSink,
    HttpSink,
    KafkaSink,
    KafkaSource,
    PostgresSink,
    RedisSink,
    SqlAlchemySink,
    exactly_once,
)
from onceward.cli.main import check_words
from onceward.connectors.spark.formats.formats import SinkFormat, format_of
from onceward.connectors.spark.read.kafka_offsets import (
    ELSEWHERE,
    ONLY_BATCH,
    SELECTIONS,
    STARTS,
    STRATEGY,
    TIMEOUT,
    batch_source,
    stream_source,
)
from onceward.core.contract.connector import connectors
from onceward.core.errors import ConfigurationError
from onceward.core.kit.text_options import option_names

from .options_kit import FORMATS, GOOD, OPTIONS, use

if TYPE_CHECKING:
    from pathlib import Path


@given(
    choice=st.sampled_from(OPTIONS), text=st.text(" \t\n\u00a0", max_size=3), spelling=st.sampled_from((str, str.lower))
)
def test_an_empty_option_is_refused_whatever_the_format(choice: Any, text: str, spelling: Any) -> None:
    kind, option = choice
    others = {k: v for k, v in GOOD[kind.name()].items() if k.lower() != option.lower()}
    with pytest.raises(
        ConfigurationError, match=rf"option {option} is empty|unknown options|needs the options|two spellings"
    ):
        use(kind, {**others, spelling(option): text})


SOURCE = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}
OF_SOURCE = [
    *option_names(KafkaSource, aliases={TIMEOUT: "timeout"}, omit=ELSEWHERE),
    *(*SELECTIONS, *STARTS, *ONLY_BATCH, STRATEGY),
    *("kafka.bootstrap.servers", "kafka.group.id", "kafka.isolation.level", "kafka.sasl.password", "kafka.client.rack"),
]


def source(options: dict[str, str], *, stream: bool) -> KafkaSource:
    return (stream_source if stream else batch_source)(options)


@given(
    option=st.sampled_from(OF_SOURCE),
    text=st.text(" \t\n\u00a0", max_size=3),
    spelling=st.sampled_from((str, str.lower)),
    stream=st.booleans(),
)
def test_an_empty_option_of_the_source_is_refused(option: str, text: str, spelling: Any, *, stream: bool) -> None:
    others = {k: v for k, v in SOURCE.items() if k != option and not (k == "subscribe" and option in SELECTIONS)}
    with pytest.raises(
        ConfigurationError,
        match=rf"{option.removeprefix('kafka.')} is empty|are not for|servers\) is (missing|not host)",
    ):
        source({**others, spelling(option): text}, stream=stream)


@given(option=st.sampled_from(OF_SOURCE), stream=st.booleans())
def test_an_option_of_the_source_takes_no_value_of_another_kind(option: str, *, stream: bool) -> None:
    """Neither a number nor a word nor JSON of what is expected anywhere; where any text will do, it is taken."""
    others = {k: v for k, v in SOURCE.items() if k != option and not (k == "subscribe" and option in SELECTIONS)}
    taken = {"subscribe", "subscribePattern", "kafka.group.id", "kafka.sasl.password", "kafka.client.rack"}
    try:
        source({**others, option: '["?", 1.5]'}, stream=stream)
    except ConfigurationError:
        return
    assert option in taken


TEXTS = {
    *("store", "checkpointLocation", "runKey", "rewind", "topic", "key", "ledgerSchema", "path", "partitionBy"),
    *("folder", "token", "username", "password", "caFile", "clientCert"),
}
"""Options of sinks for which any text will do, until a server or a schema is asked."""


@pytest.mark.parametrize(("kind", "option"), OPTIONS)
def test_an_option_of_a_sink_takes_no_value_of_another_kind(kind: type[SinkFormat], option: str) -> None:
    others = {k: v for k, v in GOOD[kind.name()].items() if k.lower() != option.lower()}
    for text in ('["?", 1.5]', "nan", "-inf", "1e400", "-1", "yes!", "\u0663"):
        try:
            use(kind, {**others, option: text})
        except ConfigurationError:
            continue
        named = option in {"name", "dbtable", "pipeline", "keyHeader"} and text not in ('["?", 1.5]', "\u0663", "yes!")
        assert option in TEXTS or named, text


@given(option=st.from_regex(r"\A[a-z]{1,12}x{3}\Z"), stream=st.booleans())
def test_an_unknown_option_of_the_source_is_refused(option: str, *, stream: bool) -> None:
    with pytest.raises(ConfigurationError, match="unknown options"):
        source({**SOURCE, option: "1"}, stream=stream)


ARGUMENTS = {"bootstrap_servers": "b:1", "topics": ["t"]}
WRONG = ("", " ", 5, -1, 1.5, b"x", [], {}, object(), [""], [5], {"a": 5}, float("nan"), float("inf"), 1j)


@pytest.mark.parametrize("name", list(inspect.signature(KafkaSource).parameters))
def test_an_argument_of_the_source_of_any_type_is_taken_or_refused_in_words(name: str) -> None:
    """Never a traceback of something else; and nothing that is empty or no number is taken."""
    others = {k: v for k, v in ARGUMENTS.items() if not (k == "topics" and name in {"pattern", "assign"})}
    for wrong in WRONG:
        try:
            KafkaSource(**{**others, name: wrong})  # type: ignore[arg-type]
        except ConfigurationError:
            continue
        assert (name, wrong) in [
            *((name, 5) for name in ("min_partitions", "max_offsets_per_trigger", "timeout")),
            *((f"{name}_records_per_partition", 5) for name in ("min", "max")),
            *(("timeout", 1.5), ("config", {}), ("config", {"a": 5})),
        ]


SINKS: dict[Any, dict[str, Any]] = {
    PostgresSink: {"name": "t", "dsn": "postgresql://h/db", "table": "t"},
    SqlAlchemySink: {"name": "t", "url": "sqlite:////tmp/db", "table": "t"},
    KafkaSink: {"name": "t", "bootstrap_servers": "b:9092", "topic": "t"},
    FileSink: {"name": "t", "folder": "/tmp/out"},
    HttpSink: {"name": "t", "folder": "/tmp/wal", "url": "http://h/"},
    RedisSink: {"name": "t", "folder": "/tmp/wal", "url": "redis://h", "key": "k"},
}
WHOLE = {
    *("ledger_epochs", "create_topic", "roll_bytes", "rows_per_send", "maxlen", "replicas"),
}
SECONDS = {"lock_timeout", "answer_within", "transaction_timeout", "timeout", "connect_timeout", "longest_wait"}


@pytest.mark.parametrize(
    ("sink", "name"), [(sink, name) for sink in SINKS for name in inspect.signature(sink).parameters]
)
def test_an_argument_of_a_sink_of_any_type_is_taken_or_refused_in_words(sink: Any, name: str) -> None:
    for wrong in WRONG:
        try:
            sink(**{**SINKS[sink], name: wrong})
        except ConfigurationError:
            continue
        may_be_empty = {"config": {}, "headers": {}, "partition_by": [], "retry_statuses": []}
        number = (wrong == 5 and name in WHOLE | SECONDS) or (wrong == 1.5 and name in SECONDS)
        assert number or may_be_empty.get(name) == wrong or (name, wrong) == ("config", {"a": 5})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("pipeline", ["", " ", None, 5, b"x", []]),
        ("writers", ["", "many", 0, -1, 1.5, True, []]),
        ("commit_timeout", ["", "x", None, True, [], -1, float("nan"), float("inf")]),
        ("commit_backoff", ["", "x", None, True, [], 0, -1, float("nan"), float("inf")]),
        ("on_lost", ["", " ", "x", None, 5, True]),
        ("adopt", ["", "true", None, 1, []]),
        ("rewind", ["", " ", 5, True, []]),
        ("on_complete", ["", 5, True]),
    ],
)
def test_an_argument_of_exactly_once_is_refused_before_spark_or_a_target_is_asked(name: str, values: list[Any]) -> None:
    frame: Any = SimpleNamespace(isStreaming=True)  # anything more that is asked of it is an AttributeError
    for value in values:
        settings: Any = {"pipeline": "p", name: value}
        with pytest.raises(ConfigurationError, match=name.replace("pipeline", "pipeline name")):
            exactly_once(frame, FileSink("files", "/tmp/out"), **settings)


@given(kind=st.sampled_from(FORMATS), option=st.from_regex(r"\A[a-z]{1,12}x{3}\Z"))
def test_an_unknown_option_is_refused_whatever_the_format(kind: type[SinkFormat], option: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown options"):
        use(kind, {**GOOD[kind.name()], option: "1"})


@pytest.mark.parametrize("kind", FORMATS)
def test_the_options_of_these_tests_are_otherwise_good(kind: type[SinkFormat]) -> None:
    use(kind, GOOD[kind.name()])


@pytest.mark.parametrize(
    ("option", "value"), [("rewind", "why"), ("adopt", "true"), ("checkpointLocation", "/c"), ("REWIND", "why")]
)
def test_a_batch_write_refuses_what_only_a_streaming_query_takes(tmp_path: Path, option: str, value: str) -> None:
    made = format_of(connectors()["files"])({"path": str(tmp_path / "out"), option: value})
    with pytest.raises(
        ConfigurationError, match=f"a batch write takes no option {option}, which belongs to a streaming"
    ):
        made.writer(StructType().add("n", LongType()), overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_a_streaming_query_refuses_what_only_a_batch_write_takes(tmp_path: Path) -> None:
    made = format_of(connectors()["files"])(
        {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path), "run_key": "monday"}
    )
    with pytest.raises(ConfigurationError, match="a streaming query takes no option run_key, which belongs to a batch"):
        made.streamWriter(StructType().add("n", LongType()), overwrite=False)


@pytest.mark.parametrize("blank", ["", " ", "\t"])
@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda blank: FileSink("files", blank), "folder"),
        (lambda blank: PostgresSink("t", dsn=blank, table="t"), "dsn"),
        (lambda blank: PostgresSink("t", dsn="postgresql://h/db", table=blank), "table"),
        (lambda blank: KafkaSink("t", bootstrap_servers="b:9092", topic=blank), "topic"),
        (lambda blank: KafkaSource(bootstrap_servers="b:9092", pattern=blank), "pattern"),
        (lambda blank: FileSink("files", "/tmp/out", where=blank), "where"),
    ],
)
def test_empty_arguments_are_refused(make: Any, word: str, blank: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{word} is empty"):
        make(blank)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["savepoint", "delete", "", "--yes"], "argument 3 is empty"),
        (["txn", "list", "--store", ""], "--store is empty"),
        (["checkpoints", "--pipeline= "], "--pipeline is empty"),
    ],
)
def test_an_empty_argument_of_a_command_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_words(words)


def test_arguments_of_a_program_are_its_own() -> None:
    check_words(["run", "python", "job.py", ""])
    check_words(["txn", "list", "--at", "kafka=b:9092"])
