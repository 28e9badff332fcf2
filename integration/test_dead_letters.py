"""Rows that a sink refuses go to the dead-letter sink in the same epoch: on real Spark, Kafka and PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import psycopg
import pytest
from pyspark.errors import StreamingQueryException

from onceward import FileSink, ForeachBatch, KafkaSink, Output, PostgresSink, exactly_once
from onceward.core.errors import ConfigurationError
from onceward.core.kit.crash_points import Step
from onceward.core.log import open_store, read

from .dead_letters_driver import BAD, with_bad
from .kafka_kit import read_all
from .spark_kit import Feed, crash_at, finish, prepared_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]
DRIVER = Path(__file__).with_name("dead_letters_driver.py")

TABLE = """
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE known (id bigint PRIMARY KEY);
INSERT INTO known SELECT * FROM generate_series(0, 99);
CREATE TABLE paid (
  id bigint PRIMARY KEY, word varchar(3), mood mood, cents int CHECK (cents >= 0), other bigint REFERENCES known)
"""


class Job:
    """Feed → a table with constraints; refused rows to Kafka."""

    def __init__(self, spark: SparkSession, folder: Path, kafka: KafkaServer, topic: str, dsn: str) -> None:
        self.spark, self.folder, self.servers, self.topic, self.dsn = spark, folder, kafka.bootstrap_servers, topic, dsn
        self.feed = Feed(folder)
        self.pipeline = f"dead-{folder.parent.name}-{folder.name}"[-60:].lstrip("-_.")
        with psycopg.connect(dsn) as connection:
            connection.execute(TABLE)

    def paid(self, **options: Any) -> PostgresSink:
        return PostgresSink("paid", dsn=self.dsn, table="paid", **options)

    def rejected(self) -> KafkaSink:
        return KafkaSink("rejected", bootstrap_servers=self.servers, topic=self.topic)

    def run(self, *sinks: Any, frame: DataFrame | None = None, **options: Any) -> None:
        frame = with_bad(self.feed.stream(self.spark)) if frame is None else frame
        options = {"dead_letter": self.rejected(), "writers": 1, **options}
        writer = exactly_once(
            frame, *(sinks or [self.paid()]), checkpoint=self.folder / "checkpoint", pipeline=self.pipeline, **options
        )
        finish(writer.trigger(availableNow=True).start())

    def rows(self, statement: str = "SELECT id FROM paid ORDER BY id") -> list[Any]:
        with psycopg.connect(self.dsn) as connection:
            return [row[0] for row in connection.execute(statement).fetchall()]  # type: ignore[arg-type]

    def letters(self) -> list[dict[str, Any]]:
        found = []
        for message in read_all(self.servers, self.topic):
            headers = {name: value.decode() for name, value in message.headers() or []}
            found.append({**headers, "row": json.loads(message.value())})
        return sorted(found, key=lambda letter: str(letter["row"]))


def good(rows: int) -> list[int]:
    return [number for number in range(rows) if number not in BAD]


def check(job: Job) -> None:
    assert job.rows() == good(job.feed.rows)
    letters = job.letters()
    assert len(letters) == len(BAD)
    assert {letter["sink"] for letter in letters} == {"paid"}
    for number, (column, value, word) in BAD.items():
        [letter] = [one for one in letters if word in one["reason"]]
        assert str(letter["row"][column]) == value.strip("'"), number
        assert letter["error"] in ("SchemaError", "PostgresError"), number
        assert letter["epoch"] == "0"
    assert prepared_in(job.dsn) == 0


@pytest.mark.parametrize("commit", ["prepared", "staging"])
def test_what_a_table_refuses_goes_to_the_dead_letter_sink_in_the_same_epoch(job: Job, commit: str) -> None:
    job.feed.add(40)
    job.run(job.paid(commit=commit))
    check(job)
    job.feed.add(40)
    job.run(job.paid(commit=commit))
    check(job)
    with psycopg.connect(job.dsn) as connection:
        left = connection.execute("SELECT count(*) FROM onceward.staged").fetchone()
    assert left == (0,)


BY_DAY = (Step.DECIDE_BEFORE, Step.DECIDE_AFTER, Step.COMMIT_AFTER)


@pytest.mark.parametrize("step", [*BY_DAY, pytest.param(Step.COMPLETE_BEFORE, marks=pytest.mark.nightly)])
def test_a_driver_that_dies_at_any_step_loses_and_doubles_no_dead_letter(job: Job, step: Step) -> None:
    job.feed.add(40)
    with crash_at(step), pytest.raises(StreamingQueryException):
        job.run()
    job.run()
    check(job)
    job.feed.add(10)
    job.run()
    check(job)


@pytest.mark.parametrize("lost", ["paid", "rejected"])
def test_what_a_decided_epoch_lost_is_written_again_beside_its_dead_letters(job: Job, lost: str) -> None:
    """Kafka's share, the dead letters, is committed first; alone they cannot be found again."""
    job.feed.add(40)
    step = Step.COMMIT_AFTER if lost == "paid" else Step.DECIDE_AFTER
    with crash_at(step), pytest.raises(StreamingQueryException):
        job.run()
    undone = read(open_store(f"{job.folder}/checkpoint/onceward", pipeline=job.pipeline)).undone
    assert undone is not None
    by_sink = {committable.sink: committable for committable in undone.committables}
    if lost == "paid":
        assert job.paid().abort(by_sink["paid"]).done
        assert len(job.letters()) == len(BAD)
    else:
        assert job.paid().commit(by_sink["paid"]).settled
        assert job.rejected().abort(by_sink["rejected"]).done
        with pytest.raises(StreamingQueryException, match="sink rejected lost cannot be written again"):
            job.run()
        job.run(on_lost="skip")
        assert (job.rows(), job.letters()) == (good(40), [])
        return
    job.run()
    check(job)


@pytest.mark.parametrize("limit", [4, 0.1])
def test_above_the_limit_nothing_is_decided(job: Job, limit: float) -> None:
    job.feed.add(40)
    with pytest.raises(StreamingQueryException, match=r"DeadLetterLimitError.*sink paid"):
        job.run(max_dead_letters=limit)
    assert (job.rows(), job.letters(), prepared_in(job.dsn)) == ([], [], 0)
    job.run(max_dead_letters=5 if limit == 4 else 0.125)
    check(job)


def test_without_a_dead_letter_sink_a_refused_row_stops_the_query(job: Job) -> None:
    job.feed.add(40)
    with pytest.raises(StreamingQueryException, match=r"PostgresError|SchemaError"):
        job.run(dead_letter=None)
    assert job.rows() == []


def test_each_sink_and_each_output_has_its_own_refused_rows(job: Job) -> None:
    """A message that is too large for its topic, rows that a table refuses, and a sink that takes all."""
    with psycopg.connect(job.dsn) as connection:
        connection.execute("CREATE TABLE every (id bigint); CREATE TABLE counts (other bigint CHECK (other < 39))")
    small = KafkaSink(
        "small",
        bootstrap_servers=job.servers,
        topic=f"{job.topic}-small",
        create_topic=1,
        config={"message.max.bytes": 2000},
        select=["if(cents = 20, repeat('x', 5000), cast(id AS string)) AS value"],
    )
    job.feed.add(40)
    job.run(
        job.paid(where="cents <> 1"),
        PostgresSink("every", dsn=job.dsn, table="every", select=["id"]),
        Output(PostgresSink("counts", dsn=job.dsn, table="counts"), lambda batch: batch.select("other").distinct()),
        small,
    )
    assert job.rows() == [number for number in good(40) if number != 1]
    assert len(job.rows("SELECT id FROM every")) == 40
    by_sink: dict[str, int] = {}
    for letter in job.letters():
        by_sink[letter["sink"]] = by_sink.get(letter["sink"], 0) + 1
    assert by_sink == {"paid": 5, "small": 1, "counts": 2}
    assert len(read_all(job.servers, f"{job.topic}-small")) == 39


@pytest.mark.parametrize("commit", ["auto", "staging"])
def test_a_row_that_refers_to_a_row_of_the_same_epoch_in_another_table_is_no_dead_letter(job: Job, commit: str) -> None:
    with psycopg.connect(job.dsn) as connection:
        connection.execute("CREATE TABLE parents (id bigint PRIMARY KEY)")
        connection.execute("CREATE TABLE children (id bigint REFERENCES parents, word varchar(2))")
    job.feed.add(12)
    children = ["id", "if(id = 5, 'long', word) AS word"]
    job.run(
        PostgresSink("children", dsn=job.dsn, table="children", select=children, commit=commit),
        PostgresSink("parents", dsn=job.dsn, table="parents", select=["id"], commit=commit),
        frame=job.feed.stream(job.spark),
    )
    assert job.rows("SELECT id FROM parents ORDER BY id") == list(range(12))
    assert job.rows("SELECT id FROM children ORDER BY id") == [number for number in range(12) if number != 5]
    assert [letter["row"] for letter in job.letters()] == [{"id": 5, "word": "long"}]


def test_rows_for_topics_that_are_missing_or_cannot_be_are_dead_letters(job: Job, topic: Callable[..., str]) -> None:
    good_topic = topic(partitions=1)
    names = f"CASE WHEN id = 3 THEN 'no name' WHEN id = 5 THEN '' WHEN id > 7 THEN 'missing' ELSE '{good_topic}' END"
    job.feed.add(16)
    routed = KafkaSink(
        "routed", bootstrap_servers=job.servers, select=["cast(id AS string) AS value", f"{names} AS topic"]
    )
    job.run(routed, frame=job.feed.stream(job.spark))
    assert sorted(int(message.value() or b"") for message in read_all(job.servers, good_topic)) == [0, 1, 2, 4, 6, 7]
    assert sorted(int(letter["row"]["value"]) for letter in job.letters()) == [3, 5, *range(8, 16)]


@pytest.mark.parametrize("commit", ["prepared", "staging"])
@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        ("IF new.id = 5 THEN RAISE EXCEPTION 'closed' USING errcode = 'SHOP1'; END IF;", "closed"),
        ("CASE WHEN new.id <> 5 THEN NULL; END CASE;", "case not found"),
        ("IF new.id <> 5 THEN RETURN new; END IF; IF new.id = 5 THEN NULL; ELSE", "without RETURN"),
        (
            "new.id := (SELECT new.id FROM generate_series(1, CASE new.id WHEN 5 THEN 2 ELSE 1 END));",
            "more than one row",
        ),
    ],
)
def test_a_trigger_refuses_rows_with_whatever_code_it_likes_and_its_own_rows_are_those_of_what_is_kept(
    job: Job, commit: str, refusal: str, reason: str
) -> None:
    end = "RETURN new; END IF; END" if refusal.endswith("ELSE") else "RETURN new; END"
    with psycopg.connect(job.dsn) as connection:
        connection.execute("CREATE TABLE seen (id bigint); CREATE TABLE guarded (id bigint)")
        connection.execute(
            "CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO seen VALUES (new.id);"
            f" {refusal} {end} $$"
        )
        connection.execute("CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION guard()")
    job.feed.add(12)
    guarded = PostgresSink("guarded", dsn=job.dsn, table="guarded", select=["id"], commit=commit)
    job.run(guarded, frame=job.feed.stream(job.spark))
    kept = [number for number in range(12) if number != 5]
    assert job.rows("SELECT id FROM guarded ORDER BY id") == kept
    assert job.rows("SELECT id FROM seen ORDER BY id") == kept
    [letter] = job.letters()
    assert letter["row"] == {"id": 5}
    assert reason in letter["reason"]


ENTER = """
CREATE TABLE entered (id bigint, place bigint, way text);
CREATE FUNCTION enter() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF new.way = 'exit' AND NOT EXISTS (SELECT FROM entered WHERE place = new.place AND way = 'enter')
  THEN RAISE EXCEPTION 'exit without enter' USING errcode = '23514'; END IF;
  RETURN new; END $$;
CREATE TRIGGER enter BEFORE INSERT ON entered FOR EACH ROW EXECUTE FUNCTION enter();
"""


@pytest.mark.parametrize("commit", ["prepared", "staging"])
@pytest.mark.parametrize("bad", [0, 21])
def test_a_row_that_needs_an_earlier_one_is_no_dead_letter_beside_a_bad_row(job: Job, commit: str, bad: int) -> None:
    with psycopg.connect(job.dsn) as connection:
        connection.execute(ENTER)
    job.feed.add(41)
    place = f"CASE WHEN id = {bad} THEN 999 ELSE (id - CASE WHEN id > {bad} THEN 1 ELSE 0 END) div 2 END"
    enters = f"(id - CASE WHEN id > {bad} THEN 1 ELSE 0 END) % 2 = 0"
    frame = job.feed.stream(job.spark, partitions=1).selectExpr(
        "id", f"{place} AS place", f"CASE WHEN id != {bad} AND {enters} THEN 'enter' ELSE 'exit' END AS way"
    )
    job.run(PostgresSink("entered", dsn=job.dsn, table="entered", commit=commit), frame=frame)
    assert job.rows("SELECT id FROM entered ORDER BY id") == [number for number in range(41) if number != bad]
    [letter] = job.letters()
    assert (letter["row"]["id"], "exit without enter" in letter["reason"]) == (bad, True)
    assert prepared_in(job.dsn) == 0


def test_the_child_of_a_row_of_the_same_table_is_no_dead_letter_beside_an_orphan(job: Job) -> None:
    with psycopg.connect(job.dsn) as connection:
        connection.execute("CREATE TABLE tree (id bigint PRIMARY KEY, parent bigint REFERENCES tree)")
    job.feed.add(21)
    frame = job.feed.stream(job.spark, partitions=1).selectExpr(
        "id", "CASE WHEN id = 0 THEN 777 WHEN id > 1 THEN id - 1 END AS parent"
    )
    job.run(PostgresSink("tree", dsn=job.dsn, table="tree", commit="prepared"), frame=frame, max_dead_letters=1)
    assert job.rows("SELECT id FROM tree ORDER BY id") == list(range(1, 21))
    assert [letter["row"]["id"] for letter in job.letters()] == [0]


@pytest.mark.parametrize("face", ["plain", "output", "block"])
@pytest.mark.parametrize("limit", [1000, 1, 0.5])
def test_why_rows_are_refused_is_told_whichever_way_they_are_written(
    job: Job, caplog: pytest.LogCaptureFixture, face: str, limit: float
) -> None:
    """Also one sink of several that refuses most of its rows is above a share of a half."""
    job.feed.add(10)
    columns = ["id", "word", "'glad' AS mood", "CASE WHEN id < 7 THEN -1 ELSE 1 END AS cents", "NULL AS other"]
    frame = job.feed.stream(job.spark).selectExpr(*columns)
    others = [FileSink(f"other-{number}", job.folder / f"other-{number}") for number in range(2)]
    paid = job.paid()
    why = "violates check constraint"

    def run() -> None:
        if face == "block":
            handler = ForeachBatch(
                paid, *others, pipeline=job.pipeline, dead_letter=job.rejected(), max_dead_letters=limit, writers=1
            )

            def write(batch: DataFrame, number: int) -> None:
                with handler.epoch(batch, number) as epoch:
                    epoch.write(batch.select("*"), paid)
                    for other in others:
                        epoch.write(batch, other)

            writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(job.folder / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        else:
            first = Output(paid, lambda batch: batch.select("*")) if face == "output" else paid
            job.run(first, *others, frame=frame, max_dead_letters=limit)

    if limit == 1000:
        run()
        [warning] = [one.getMessage() for one in caplog.records if "refused rows go to" in one.getMessage()]
        assert "7 refused rows" in warning
        assert "times sink paid: " in warning
        assert why in warning
        assert job.rows() == [7, 8, 9]
    else:
        with pytest.raises(StreamingQueryException, match=f"(?s)DeadLetterLimitError.*{why}"):
            run()
        assert job.rows() == []


def test_dead_letters_say_where_a_row_came_from_in_the_source(
    job: Job, kafka: KafkaServer, topic: Callable[..., str]
) -> None:
    source = topic(partitions=1)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in (b"1", b"2", b"three", b"4"):
        producer.produce(source, value)
    producer.flush()
    stream = (
        job.spark.readStream.format("onceward-kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    with psycopg.connect(job.dsn) as connection:
        connection.execute("CREATE TABLE numbers (number varchar(1))")
    numbers = PostgresSink("numbers", dsn=job.dsn, table="numbers", select=["cast(value AS string) AS number"])
    job.run(numbers, frame=stream)
    assert job.rows("SELECT number FROM numbers ORDER BY 1") == ["1", "2", "4"]
    [letter] = job.letters()
    assert letter["row"] == {"number": "three"}
    assert (letter["source_topic"], letter["source_partition"], letter["source_offset"]) == (source, "0", "2")


def test_a_table_takes_dead_letters_and_so_does_a_function_of_ones_own(job: Job) -> None:
    table = PostgresSink("rejected", dsn=job.dsn, table="rejected", create_table=True)
    paid = job.paid()
    batches = ForeachBatch(paid, pipeline=job.pipeline, dead_letter=table)
    job.feed.add(40)
    writer = with_bad(job.feed.stream(job.spark)).writeStream.foreachBatch(batches)
    writer.option("checkpointLocation", str(job.folder / "c")).trigger(availableNow=True).start().awaitTermination()
    assert sorted({*range(40)} - {*job.rows()}) == sorted(BAD)
    assert job.rows("SELECT sink FROM rejected") == ["paid"] * len(BAD)
    assert {json.loads(row)["word"] for row in job.rows("SELECT row FROM rejected WHERE reason LIKE '%characters%'")}


@pytest.mark.parametrize("when", ["letters", "trial"])
def test_a_task_that_is_killed_after_its_dead_letters_and_tried_again_writes_them_once(
    job: Job, driver_environment: dict[str, str], when: str
) -> None:
    """Killed when rows and dead letters are prepared, or when a trial is prepared and not yet aborted."""
    job.feed.add(40)
    command = [sys.executable, str(DRIVER), str(job.folder), job.dsn, job.servers, job.topic, when]
    done = subprocess.run(command, env=driver_environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (job.folder / "struck").exists()
    check(job)


def test_what_cannot_take_dead_letters_is_refused_at_once(job: Job) -> None:
    frame = with_bad(job.feed.stream(job.spark))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"dead_letter": job.paid()}, "a name of its own"),
        ({"dead_letter": KafkaSink("d", bootstrap_servers=job.servers, topic="t", where="true")}, "no select"),
        ({"dead_letter": job.rejected(), "max_dead_letters": 1.5}, "max_dead_letters must be"),
        ({"dead_letter": "rejected"}, "given: .*str"),
    ]
    for options, words in wrong:
        with pytest.raises(ConfigurationError, match=words):
            exactly_once(frame, job.paid(), checkpoint=str(job.folder / "c"), pipeline="p", **options)
