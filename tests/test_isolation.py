"""Rows that a target refuses: found by halving, left out of the one transaction that is acknowledged."""

from __future__ import annotations

import json
import pickle
import resource
import tempfile
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.connectors.kafka.messages import check_message_columns
from onceward.connectors.kafka.sink import KafkaSink
from onceward.connectors.spark.write import refused_rows
from onceward.connectors.spark.write.refused_rows import Letters
from onceward.connectors.spark.write.spark_task import write_partition
from onceward.core.checkpoint.isolation import Isolation, Spool
from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.contract.dead_letters import (
    SCHEMA,
    DeadLetters,
    checked_limit,
    letters_of,
    row_text,
    source_position,
)
from onceward.core.contract.transaction import Committable, WriteContext, Written
from onceward.core.errors import (
    ConfigurationError,
    DeadLetterLimitError,
    ExternalError,
    OncewardError,
    RetryableSinkError,
    SinkError,
    refusing_rows,
)
from onceward.sinks import DirectSink

from .sink_kit import Target, TargetSink, Transaction
from .spark_kit import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CONTEXT = WriteContext(pipeline="p", sink="target", log="0" * 8, generation=0, epoch=3, subtask=0)
DEAD = WriteContext(pipeline="p", sink="dead", log="0" * 8, generation=0, epoch=3, subtask=-1)


def batch(*numbers: int, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(list(numbers), pa.int64()), **columns})


class Strict(TargetSink):
    """Refuses numbers below 0 when they are written, and above 99 and repeated ones when it prepares."""

    def __init__(self, target: Target, name: str = "target") -> None:
        super().__init__(target, name)
        self.begun = 0
        self.fault: Callable[[list[int]], Exception | None] = lambda _: None

    def begin(self, context: WriteContext) -> Transaction:
        self.begun += 1
        return super().begin(context)

    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        if any(row["n"] < 0 for row in batch.to_pylist()):
            raise refusing_rows(SinkError("a number is negative"))
        super().write(transaction, batch)

    def pre_commit(self, transaction: Transaction) -> Committable:
        numbers = [row["n"] for row in transaction.rows]
        if (fault := self.fault(numbers)) is not None:
            raise fault
        if any(number > 99 for number in numbers):
            raise refusing_rows(SinkError("a number is too large"))
        if len(set(numbers)) < len(numbers):
            raise refusing_rows(SinkError("a number is there already"))
        return super().pre_commit(transaction)


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def strict(target: Target) -> Strict:
    return Strict(target)


def isolated(sink: TargetSink, *batches: pa.RecordBatch, most: int | None = None) -> tuple[Any, Isolation]:
    isolation = Isolation(sink, CONTEXT, lambda at: batches[at], [one.num_rows for one in batches], most=most)
    return isolation.write(refusing_rows(SinkError("refused"))), isolation


def prepared_numbers(target: Target) -> list[list[int]]:
    return [[row["n"] for row in rows] for _, rows in target.prepared.values()]


@pytest.mark.parametrize(
    ("batches", "refused"),
    [
        ([[1, -2, 3]], [1]),
        ([[-1]], [0]),
        ([[1, 2], [], [3, 400], [5, -6, -7, 8]], [3, 5, 6]),
        ([[-1, -2, 300]], [0, 1, 2]),
        ([[5, 6, 5], [7, 6]], [2, 4]),
        ([[5, -1, 5, 500, 5]], [1, 2, 3, 4]),
        ([list(range(100)), [-1], list(range(100))], [100, *range(101, 201)]),
    ],
)
def test_the_rows_that_are_refused_are_found_and_the_others_are_one_transaction(
    target: Target, strict: Strict, batches: list[list[int]], refused: list[int]
) -> None:
    (committable, written), isolation = isolated(strict, *(batch(*numbers) for numbers in batches))
    everything = [number for numbers in batches for number in numbers]
    good = [number for at, number in enumerate(everything) if at not in refused]
    assert sorted(isolation.refused) == refused
    assert prepared_numbers(target) == ([good] if good else [])
    assert (committable is not None, written.rows) == (bool(good), len(good))
    assert target.committed == {}


@pytest.mark.parametrize("seed", range(40))
def test_of_any_rows_the_good_ones_are_written_and_of_equal_ones_the_first(seed: int) -> None:
    random = Random(seed)
    target = Target()
    numbers = [random.choice([-1, 500, *range(random.choice([5, 90]))]) for _ in range(random.randint(2, 60))]
    cuts = sorted(random.choices(range(len(numbers) + 1), k=3))
    batches = [numbers[begin:end] for begin, end in pairwise([0, *cuts, len(numbers)])]
    (_, written), isolation = isolated(Strict(target), *(batch(*one) for one in batches))
    good = list(dict.fromkeys(number for number in numbers if 0 <= number <= 99))
    assert prepared_numbers(target) == ([good] if good else [])
    assert written.rows + len(isolation.refused) == len(numbers)


class InOrder(TargetSink):
    """Takes a number below 0 only after its opposite, 0 never, and no number twice; says so when it prepares."""

    def __init__(self, target: Target, name: str = "target") -> None:
        super().__init__(target, name)
        self.begun = 0

    def begin(self, context: WriteContext) -> Transaction:
        self.begun += 1
        return super().begin(context)

    def pre_commit(self, transaction: Transaction) -> Committable:
        seen: set[int] = set()
        for row in transaction.rows:
            if row["n"] == 0 or row["n"] in seen or (row["n"] < 0 and -row["n"] not in seen):
                error = SinkError(f"{row['n']} is too early")
                error.refuses_rows = True
                error.refuses_alone = row["n"] == 0
                raise error
            seen.add(row["n"])
        return super().pre_commit(transaction)


def in_order(numbers: list[int]) -> list[int]:
    """Those that a target takes which gets one number after the other."""
    taken: list[int] = []
    for number in numbers:
        if number != 0 and number not in taken and (number > 0 or -number in taken):
            taken.append(number)
    return taken


@pytest.mark.parametrize(
    "numbers",
    [
        [-99, *(sign * number for number in range(1, 21) for sign in (1, -1))],
        [*range(1, 21), 0, *range(-20, 0)],
        [-1, 1, -1],
        [0, -3, -2, -1],
        [1, -1, 1, -1, 2, -2, -3, 3],
    ],
)
def test_a_row_that_needs_an_earlier_one_is_refused_only_if_that_is_not_there(
    target: Target, numbers: list[int]
) -> None:
    _, isolation = isolated(InOrder(target), batch(*numbers))
    good = in_order(numbers)
    assert prepared_numbers(target) == ([good] if good else [])
    assert len(isolation.refused) == len(numbers) - len(good)


@pytest.mark.parametrize("seed", range(60))
def test_rows_that_need_or_exclude_earlier_ones_are_those_that_a_target_takes_one_after_another(seed: int) -> None:
    random = Random(seed)
    target, most = Target(), random.choice([5, 30])
    numbers = [random.randint(-most, most) for _ in range(random.randint(2, 60))]
    cuts = sorted(random.choices(range(len(numbers) + 1), k=3))
    batches = [numbers[begin:end] for begin, end in pairwise([0, *cuts, len(numbers)])]
    isolated(InOrder(target), *(batch(*one) for one in batches))
    good = in_order(numbers)
    assert prepared_numbers(target) == ([good] if good else [])


def test_rows_that_need_earlier_ones_do_not_count_for_the_limit(target: Target) -> None:
    numbers = [0, 1, *(sign * number for number in range(2, 400) for sign in (1, -1)), -1]
    _, isolation = isolated(InOrder(target), batch(*numbers), most=1)
    assert sorted(isolation.refused) == [0]
    sink = InOrder(Target())
    with pytest.raises(DeadLetterLimitError, match=r"more than 3 rows.*is too early"):
        isolated(sink, batch(*range(-400, 0)), most=3)
    assert sink.begun < 1000


def test_rows_that_may_need_earlier_ones_cost_one_trial_each(target: Target) -> None:
    numbers = [*range(1, 65)]
    numbers[7] = numbers[20] = numbers[41] = -99
    sink = InOrder(target)
    isolated(sink, batch(*numbers))
    assert sink.begun <= 3 * 12 + 3 + 1


def test_few_refused_rows_cost_few_trials(strict: Strict) -> None:
    for at in (0, 17, 63):
        numbers = list(range(64))
        numbers[at] = -1
        before = strict.begun
        isolated(strict, batch(*numbers))
        assert strict.begun - before <= 2 * 6 + 2


class Related(Strict):
    """Refuses also a number of 50 or more whose half, rounded down, is not there already."""

    def pre_commit(self, transaction: Transaction) -> Committable:
        numbers = [row["n"] for row in transaction.rows]
        if any(50 <= n <= 99 and n // 2 not in numbers[:at] for at, n in enumerate(numbers)):
            error = SinkError("a number's half is missing")
            error.refuses_rows = True
            raise error
        return super().pre_commit(transaction)


@pytest.mark.parametrize("seed", range(80))
def test_a_row_is_refused_only_after_all_accepted_rows_before_it(seed: int) -> None:
    """As a row that refers to another one of its table is; what refers to a refused one is refused, too."""
    random = Random(seed)
    some = random.choice([[25, 26, 30, 49], range(100), [3, 25, 50, 99, 49, -1], [25, 26, 50, 51, 53, 500]])
    numbers = [random.choice(some) for _ in range(random.randint(2, 40))]
    good: list[int] = []
    for number in numbers:
        if 0 <= number <= 99 and number not in good and (number < 50 or number // 2 in good):
            good.append(number)
    target = Target()
    (_, written), isolation = isolated(Related(target), batch(*numbers))
    assert prepared_numbers(target) == ([good] if good else [])
    assert written.rows + len(isolation.refused) == len(numbers)


def test_many_rows_that_refer_to_others_cost_few_trials(target: Target) -> None:
    sink = Related(target)
    isolated(sink, batch(*range(25, 100), -1))
    assert prepared_numbers(target) == [list(range(25, 100))]
    assert sink.begun < 40


def test_each_refused_row_has_its_own_reason(strict: Strict) -> None:
    _, isolation = isolated(strict, batch(1, -2, 3, 400))
    assert {at: error.message for at, error in isolation.refused.items()} == {
        1: "a number is negative",
        3: "a number is too large",
    }


def test_a_trial_that_was_prepared_is_aborted_at_once(target: Target, strict: Strict) -> None:
    isolated(strict, batch(1, 2, 3, -4))
    assert len(target.prepared) == 1
    assert target.aborted


def test_a_fault_is_no_refusal(target: Target, strict: Strict) -> None:
    strict.fault = lambda numbers: RetryableSinkError("no answer") if 7 in numbers else None
    with pytest.raises(RetryableSinkError):
        isolated(strict, batch(1, -2, 7))
    assert prepared_numbers(target) == []


def test_a_fault_fails_the_attempt_without_a_trial(strict: Strict) -> None:
    strict.fault = lambda _: RetryableSinkError("no answer")
    with pytest.raises(RetryableSinkError):
        partition([strict], [batch(1, 2)], TargetSink(Target(), "dead"))
    assert strict.begun == 1


def test_above_the_limit_the_subtask_stops(strict: Strict) -> None:
    isolated(strict, batch(-1, -2, 3), most=2)
    with pytest.raises(DeadLetterLimitError, match=r"more than 1 rows.*sink target: a number is negative.*max_dead"):
        isolated(strict, batch(-1, -2, 3), most=1)


@pytest.mark.parametrize("numbers", [[7] * 2000, [number // 2 for number in range(2000)]])
def test_rows_that_exclude_each_other_count_for_the_limit_before_all_are_tried(
    strict: Strict, numbers: list[int]
) -> None:
    numbers = [number % 100 for number in numbers]
    with pytest.raises(DeadLetterLimitError, match=r"more than 10 rows.*a number is there already"):
        isolated(strict, batch(*numbers), most=10)
    assert strict.begun < 80


def test_rows_that_exclude_each_other_are_within_a_limit_that_is_as_high_as_their_number(strict: Strict) -> None:
    numbers = [5, 5, 6, 7, 8, 8, 9, 9, 9, 5]
    _, isolation = isolated(strict, batch(*numbers), most=5)
    assert sorted(isolation.refused) == [1, 5, 7, 8, 9]
    with pytest.raises(DeadLetterLimitError):
        isolated(strict, batch(*numbers), most=4)


def test_a_share_stops_a_task_that_would_be_above_it_with_all_the_others(
    strict: Strict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_rows, "DEFAULT_LIMIT", 100)
    bad = batch(*[-1] * 300)
    with pytest.raises(DeadLetterLimitError, match=r"120 of 300 rows of a task.*a number is negative"):
        partition([strict], [bad], TargetSink(Target(), "dead"), share=0.4)
    assert strict.begun < 2 * 120 + 20
    with pytest.raises(DeadLetterLimitError, match=r"100 of 300 rows of a task"):
        partition([strict], [bad], TargetSink(Target(), "dead"), share=0.01)
    assert partition([strict], [bad], TargetSink(Target(), "dead"), share=1.0).refused


def test_a_share_is_compared_with_a_task_only_where_the_number_of_tasks_is_known() -> None:
    dead: Any = None
    assert [DeadLetters(dead, limit).share(4) for limit in (None, 10, 0.25)] == [None, None, 1.0]
    assert DeadLetters(dead, 0.25).share(None) is None
    assert [DeadLetters(dead, limit).most for limit in (None, 10, 0.25, 0.0)] == [None, 10, None, 0]


def test_dead_letters_of_large_rows_are_written_a_few_at_a_time(strict: Strict) -> None:
    sizes: list[int] = []

    class Sized(TargetSink):
        def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
            sizes.append(batch.num_rows)
            super().write(transaction, batch)

    large = pa.array(["x" * 2**20] * 12)
    dead = Sized(Target(), "dead")
    partition([strict], [batch(*[-1] * 12, text=large)], dead)
    assert sum(sizes) == 12
    assert max(sizes) < 6


def test_rows_that_do_not_fit_into_memory_are_kept_in_a_file() -> None:
    spool = Spool(in_memory=100)
    given = [batch(*range(number, number + 10)) for number in range(5)]
    for one in given:
        spool.add(one)
    assert len(spool) == 5
    assert [spool[number] for number in (4, 0, 2, 2)] == [given[4], given[0], given[2], given[2]]
    spool.close()


def test_a_folder_that_takes_no_more_rows_is_named() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    spool = Spool(in_memory=0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(ExternalError, match=rf"cannot keep its rows.*Make room in {tempfile.gettempdir()}") as full:
            spool.add(batch(*range(20_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        spool.close()
    assert not full.value.refuses_rows


def partition(
    sinks: list[Any],
    batches: Iterable[pa.RecordBatch],
    dead: Any,
    *,
    written: bool = True,
    share: float | None = None,
) -> Any:
    contexts = [WriteContext(**{**_fields(CONTEXT), "sink": sink.name, "subtask": -1}) for sink in sinks]
    with running(2, attempt=0):
        return write_partition(sinks, contexts, batches, letters=Letters(dead, DEAD, None, written, share))


def _fields(context: WriteContext) -> dict[str, Any]:
    return {name: getattr(context, name) for name in context.__struct_fields__}


def test_each_sink_leaves_out_what_it_refuses_and_the_dead_letters_are_acknowledged_beside(target: Target) -> None:
    strict, lenient, dead = Strict(target, "strict"), TargetSink(Target(), "lenient"), TargetSink(Target(), "dead")
    source = {"topic": pa.array(["t"] * 3), "partition": pa.array([4] * 3), "offset": pa.array([7, 8, 9])}
    ack = partition([strict, lenient], [batch(1, -2, 300, **source), batch(4, 5, 6, **source)], dead)
    assert prepared_numbers(target) == [[1, 4, 5, 6]]
    assert prepared_numbers(lenient.target) == [[1, -2, 300, 4, 5, 6]]
    [(letter_committable, letters)] = dead.target.prepared.values()
    assert ack.sinks == ("strict", "lenient", "dead")
    assert [committable.sink for committable in ack.committables] == ["strict", "lenient", "dead"]
    assert letter_committable.identity() in [committable.identity() for committable in ack.committables]
    assert [written.rows for written in ack.written] == [4, 6, 2]
    assert ack.retried  # so that the driver sweeps what a trial may have left
    assert ack.refused == {"sink strict: a number is negative": 1, "sink strict: a number is too large": 1}
    assert [(one["sink"], one["error"], json.loads(one["row"])["n"]) for one in letters] == [
        ("strict", "SinkError", -2),
        ("strict", "SinkError", 300),
    ]
    assert [(one["source_topic"], one["source_partition"], one["source_offset"]) for one in letters] == [
        ("t", 4, 8),
        ("t", 4, 9),
    ]


def test_a_subtask_of_which_nothing_is_refused_writes_no_dead_letters(target: Target, strict: Strict) -> None:
    dead = TargetSink(Target(), "dead")
    ack = partition([strict], [batch(1, 2), batch(3)], dead)
    assert (ack.retried, ack.refused, strict.begun, len(ack.committables)) == (False, {}, 1, 1)
    assert prepared_numbers(target) == [[1, 2, 3]]


def test_what_is_written_again_isolates_without_writing_dead_letters_again(target: Target, strict: Strict) -> None:
    dead = TargetSink(Target(), "dead")
    ack = partition([strict], [batch(1, -2)], dead, written=False)
    assert (ack.sinks, dead.target.prepared, dead.target.written) == (("target",), {}, 0)
    assert prepared_numbers(target) == [[1]]


def test_a_dead_letter_that_is_refused_fails_the_attempt(strict: Strict) -> None:
    class Closed(TargetSink):
        def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:  # noqa: ARG002
            raise refusing_rows(SinkError("no"))

    with pytest.raises(SinkError, match="no"):
        partition([strict], [batch(1, -2)], Closed(Target(), "dead"))


def test_a_direct_sink_is_never_tried_because_its_rows_stay() -> None:
    class Direct(DirectSink[list[int]]):
        def open(self, context: WriteContext) -> list[int]:  # noqa: ARG002
            return []

        def write(self, writer: list[int], batch: pa.RecordBatch) -> None:  # noqa: ARG002
            raise refusing_rows(SinkError("no"))

    with pytest.raises(SinkError, match="no"):
        partition([DirectlyWritten(Direct("direct"))], [batch(1)], TargetSink(Target(), "dead"))


def test_the_row_is_told_as_it_was_whatever_it_holds() -> None:
    wrong = pa.array([b"\xff\xfe"]).cast(pa.binary()).view(pa.binary())
    text = pa.StringArray.from_buffers(1, wrong.buffers()[1], wrong.buffers()[2])
    row = pa.RecordBatch.from_pydict(
        {
            "bytes": pa.array([b"\x00\x01"]),
            "text": text,
            "nan": pa.array([float("nan")]),
            "when": pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "null": pa.array([None], pa.int64()),
        }
    )
    assert json.loads(row_text(row)) == {
        "bytes": "AAE=",
        "text": {"base64": "//4="},
        "nan": "nan",
        "when": "2026-01-02T00:00:00+00:00",
        "null": None,
    }


def test_what_json_can_hold_of_a_nested_value_stays_as_it_was() -> None:
    wrong = pa.array([b"ok\xff"])
    text = pa.StringArray.from_buffers(1, wrong.buffers()[1], wrong.buffers()[2])
    row = pa.RecordBatch.from_pydict(
        {
            "struct": pa.StructArray.from_arrays([text, pa.array([5]), pa.nulls(1)], ["text", "n", "null"]),
            "list": pa.array([[1.5, float("nan"), None]]),
            "map": pa.array([[("a", float("inf")), ("b", 2.0)]], pa.map_(pa.string(), pa.float64())),
        }
    )
    assert json.loads(row_text(row)) == {
        "struct": {"text": {"base64": "b2v/"}, "n": 5, "null": None},
        "list": [1.5, "nan", None],
        "map": [["a", "inf"], ["b", 2.0]],
    }


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (253402300800000000, pa.timestamp("us", "UTC"), "10000-01-01T00:00:00.000000+00:00"),
        (2**62, pa.timestamp("us"), "148108-07-06T14:00:27.387904"),
        (-62135596800000001, pa.timestamp("us"), "0000-12-31T23:59:59.999999"),
        (2932897, pa.date32(), "10000-01-01"),
    ],
)
def test_a_time_that_python_does_not_have_is_told_all_the_same(value: int, kind: pa.DataType, text: str) -> None:
    time = pa.array([value], kind)
    row = pa.RecordBatch.from_pydict(
        {"at": time, "both": pa.StructArray.from_arrays([time, pa.array([1])], ["t", "n"])}
    )
    assert json.loads(row_text(row)) == {"at": text, "both": {"t": text, "n": 1}}


def test_columns_that_are_named_like_those_of_a_source_and_hold_other_values_are_left_out(strict: Strict) -> None:
    wrong = pa.array([b"\xff"])
    text = pa.StringArray.from_buffers(1, wrong.buffers()[1], wrong.buffers()[2])
    far = pa.array([2**62], pa.timestamp("us"))
    for topic, partition_, offset in (
        (pa.array([5]), pa.array([2**40]), pa.array(["first"])),
        (wrong, pa.array([True]), pa.array(["12"])),
        (text, pa.array(["0"]), far),
        (pa.array([["t"]]), far, pa.array([None], pa.int64())),
    ):
        row = batch(-1, topic=topic, partition=partition_, offset=offset)
        assert {*source_position(row).values()} <= {None}
    dead = TargetSink(Target(), "dead")
    partition([strict], [batch(-1, topic=pa.array([5]), partition=pa.array([2**40]), offset=pa.array(["first"]))], dead)
    [(_, [letter])] = dead.target.prepared.values()
    assert [letter[f"source_{name}"] for name in ("topic", "partition", "offset")] == [None] * 3
    assert json.loads(letter["row"]) == {"n": -1, "topic": 5, "partition": 2**40, "offset": "first"}


def test_kafka_gets_the_row_as_value_and_the_rest_as_headers() -> None:
    sink = KafkaSink("dead", bootstrap_servers="b:1", topic="t")
    letters = letters_of(CONTEXT, batch(1), SinkError("why"), {"topic": "t", "partition": 0, "offset": 5})
    message = sink.from_letters(letters)
    check_message_columns(message.schema, "t", "dead")
    check_message_columns(sink.from_letters(pa.RecordBatch.from_pylist([], SCHEMA)).schema, "t", "dead")
    [row] = message.to_pylist()
    assert row["value"] == '{"n": 1}'
    headers = {header["key"]: header["value"] for header in row["headers"]}
    assert headers["reason"] == b"why"
    assert headers["source_offset"] == b"5"
    assert headers["error"] == b"SinkError"


@pytest.mark.parametrize(
    ("limit", "refused", "written", "words"),
    [
        (None, 100, 0, ""),
        (0, 0, 10, ""),
        (0, 1, 10, "0 rows"),
        (0.0, 1, 10, "0.00% of the rows of sink a"),
        (5, 5, 0, ""),
        (5, 6, 1000, "5 rows"),
        (0.1, 1, 9, ""),
        (0.1, 2, 9, "10.00% of the rows of sink a"),
    ],
)
@pytest.mark.parametrize("others", [0, 3])
def test_the_limit_is_a_number_or_a_share_of_each_sinks_rows(
    limit: Any, refused: int, written: int, words: str, others: int
) -> None:
    dead: Any = None
    parts = [Written("a", written, refused=refused - refused // 2), Written("a", 0, refused=refused // 2)]
    parts += [Written(f"other {number}", 1000) for number in range(others)]
    assert DeadLetters(dead, checked_limit(limit)).exceeded(parts) == words


def test_a_number_of_rows_is_one_of_all_sinks() -> None:
    dead: Any = None
    parts = [Written("a", 9, refused=3), Written("b", 9, refused=3)]
    assert DeadLetters(dead, 5).exceeded(parts) == "5 rows"
    assert DeadLetters(dead, 0.3).exceeded(parts) == ""


def test_a_task_compares_a_share_with_the_rows_of_the_sink_that_refuses_them(
    strict: Strict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_rows, "DEFAULT_LIMIT", 10)
    others = [TargetSink(Target(), f"other-{number}") for number in range(3)]
    with pytest.raises(DeadLetterLimitError, match="50 of 100 rows of a task for one sink"):
        partition([strict, *others], [batch(*[-1] * 60, *range(40))], TargetSink(Target(), "dead"), share=0.5)


def test_an_acknowledgement_says_how_many_rows_each_sink_refused(strict: Strict) -> None:
    ack = partition([strict, TargetSink(Target(), "other")], [batch(1, -2, 3, -4)], TargetSink(Target(), "dead"))
    assert {one.sink: (one.rows, one.refused) for one in ack.written} == {
        "target": (2, 2),
        "other": (4, 0),
        "dead": (2, 0),
    }


@pytest.mark.parametrize("limit", [-1, 1.5, True, "5"])
def test_other_limits_are_refused(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_dead_letters"):
        checked_limit(limit)


def test_an_error_says_whether_it_refuses_rows_after_it_was_pickled() -> None:
    error: OncewardError = pickle.loads(pickle.dumps(refusing_rows(SinkError("no"))))
    assert error.refuses_rows
    assert not SinkError("no").refuses_rows
