"""What decisions carry of the epochs before them, and what `onceward verify` makes of it."""

from __future__ import annotations

import struct
import time
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from onceward.cli.shared_options import Access
from onceward.cli.verify.places import load_function, place_of
from onceward.connectors.kafka.reread import OUTSIDE, _headers, offsets_in
from onceward.core.contract.proof import (
    HISTORY_BYTES,
    NO_ROWS,
    Proof,
    Proofs,
    Reread,
    RereadPiece,
    Wrote,
    total,
    without,
)
from onceward.core.contract.row_hash import RowHash
from onceward.core.contract.transaction import Committable
from onceward.core.errors import ConfigurationError
from onceward.core.log import EpochInput, LogView, LogWriter, Rewound, read
from onceward.core.log.entries import Decide, Start, decode_entry, encode
from onceward.core.operations.audit import (
    AuditLine,
    EpochVerdict,
    Expected,
    check_overlap,
    group_by_epoch,
    judge_epochs,
    tally,
)

from .core_fakes import MemoryStore
from .store_contract import quick


def batch_of(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(numbers, pa.int64())})


def hash_of(*numbers: int) -> str:
    found = RowHash()
    found.add(batch_of(*numbers))
    return found.proof().hash


def committable(epoch: int, *numbers: int, sink: str = "s", proven: bool = True, mark: str = "") -> Committable:
    proof = Proof(hash_of(*numbers), ("id",), mark or f"m{epoch}") if proven else None
    name = f"t{epoch}-{sink}-{numbers}"
    fields = {"pipeline": "p", "sink": sink, "log": "l", "generation": 0, "transaction": name}
    return Committable(kind="k", epoch=epoch, rows=len(numbers), proof=proof, **fields)


def decided(writer: LogWriter, epoch: int, *committables: Committable, complete: bool = True) -> None:
    start, end = [f"at {epoch}"] if epoch else None, [f"at {epoch + 1}"]
    mine = [msgspec.structs.replace(c, log=writer.token.log) for c in committables]
    writer.decide(epoch, mine, sinks=["s"], epoch_input=EpochInput(query="q", start=start, end=end))
    if complete:
        writer.complete(epoch)


@pytest.fixture
def writer() -> LogWriter:
    made = LogWriter(MemoryStore(), "p", quick(3))
    made.start()
    return made


def test_the_newest_decision_tells_what_all_epochs_before_it_wrote(writer: LogWriter) -> None:
    for epoch in range(3):
        decided(writer, epoch, committable(epoch, epoch), committable(epoch, 10 + epoch, mark="other"))
    view = read(writer.store)
    assert len([entry for entry in view.entries if isinstance(entry, Decide)]) == 1
    assert [epoch.epoch for epoch in view.proofs.epochs] == [0, 1, 2]
    assert view.proofs.epochs[1].sinks["s"] == Wrote(2, hash_of(1, 11), ("id",), ("m1", "other"))
    assert view.proofs.total["s"] == Wrote(6, hash_of(0, 1, 2, 10, 11, 12), ("id",))
    assert [(epoch.start, epoch.end) for epoch in view.proofs.epochs] == [
        (None, ["at 1"]),
        (None, ["at 2"]),
        (None, ["at 3"]),
    ]


def test_a_later_writer_goes_on_from_there(writer: LogWriter) -> None:
    decided(writer, 0, committable(0, 1))
    other = LogWriter(writer.store, "p", quick(3))
    other.start()
    decided(other, 1, committable(1, 2))
    assert read(writer.store).proofs.total["s"].hash == hash_of(1, 2)


def test_what_was_given_up_or_voided_is_not_expected(writer: LogWriter) -> None:
    decided(writer, 0, committable(0, 1))
    lost = committable(1, 2)
    decided(writer, 1, lost, committable(1, 3), complete=False)
    writer.resolve(1, lost.transaction, action="skip", who="me", why="lost")
    writer.complete(1)
    decided(writer, 2, committable(2, 4), complete=False)
    writer.void(2, ["proof"])
    decided(writer, 2, committable(2, 5))
    proofs = read(writer.store).proofs
    assert proofs.total["s"] == Wrote(3, hash_of(1, 3, 5), ("id",))
    assert [epoch.sinks["s"].hash for epoch in proofs.epochs] == [hash_of(1), hash_of(3), hash_of(5)]


def test_a_decision_that_is_not_completed_is_not_counted(writer: LogWriter) -> None:
    decided(writer, 0, committable(0, 1), complete=False)
    assert read(writer.store).proofs == Proofs()
    assert Expected.of(read(writer.store), "s").marks == {"m0": 0}


def test_a_rewind_forgets_nothing(writer: LogWriter) -> None:
    decided(writer, 0, committable(0, 1))
    writer.rewind(Rewound(query="q", epoch=0, why="again"))
    decided(writer, 0, committable(0, 1, mark="again"))
    view = read(writer.store)
    assert view.proofs.total["s"] == Wrote(2, hash_of(1, 1), ("id",))
    assert Expected.of(view, "s").epochs[0].rows == 2


def test_a_transaction_without_a_proof_leaves_its_epoch_and_the_total_without_one(writer: LogWriter) -> None:
    decided(writer, 0, committable(0, 1))
    decided(writer, 1, committable(1, 2), committable(1, 3, proven=False))
    decided(writer, 2, committable(2, 4))
    proofs = read(writer.store).proofs
    assert [epoch.sinks["s"].hash for epoch in proofs.epochs] == [hash_of(1), "", hash_of(4)]
    assert proofs.total["s"] == Wrote(4, "", ("id",))


def test_old_epochs_are_told_together_when_there_are_many(writer: LogWriter) -> None:
    for epoch in range(300):
        decided(writer, epoch, committable(epoch, epoch))
    proofs = read(writer.store).proofs
    assert 50 < len(proofs.epochs) < 300
    assert len(msgspec.json.encode(proofs.epochs)) < HISTORY_BYTES + 200
    assert proofs.epochs[-1].epoch == 299
    older = Expected.of(read(writer.store), "s").older
    first = proofs.epochs[0].epoch
    assert older is not None
    assert (older.rows, older.hash) == (first, hash_of(*range(first)))


def test_a_decision_of_an_older_version_has_no_proofs_and_says_so() -> None:
    fields = {"pipeline": "p", "log": "l", "writer_id": "w", "start": 0}
    old = Decide(position=1, epoch=0, sinks=("s",), committables=(committable(0, 1, proven=False),), **fields)
    body = encode(old).decode()
    assert '"proofs":null' in body
    assert '"proof":null' in body
    again = decode_entry(encode(old), 1)
    assert isinstance(again, Decide)
    assert again.proofs is None
    store = MemoryStore()
    store.entries["0" * 20] = encode(Start(position=0, **fields))
    store.entries["0" * 19 + "1"] = encode(old)
    writer = LogWriter(store, "p", quick(3))
    writer.start()
    writer.complete(0)
    decided(writer, 1, committable(1, 2))
    view = read(store)
    assert not view.proofs.whole
    assert Expected.of(view, "s").older is None


def without_marks(view: LogView) -> LogView:
    """As a table's log: its proofs have no marks."""
    epochs = [
        msgspec.structs.replace(e, sinks={n: msgspec.structs.replace(w, marks=()) for n, w in e.sinks.items()})
        for e in view.proofs.epochs
    ]
    return replace(view, proofs=msgspec.structs.replace(view.proofs, epochs=tuple(epochs)))


def test_a_decision_of_many_transactions_is_added_up_at_once() -> None:
    many = [(0, "s", committable(0, number).wrote()) for number in range(10_000)]
    began = time.process_time()
    proofs = Proofs().plus(many, None, None)
    assert time.process_time() - began < 5
    assert (proofs.total["s"].rows, len(proofs.epochs[0].sinks["s"].marks)) == (10_000, 10_000)


def reread(
    *pieces: tuple[str, tuple[int, ...]], epochs: dict[str, int] | None = None, counts: dict[int, int] | None = None
) -> Reread:
    held = [
        RereadPiece(batch_of(*numbers), [mark] * len(numbers), [f"row {number}" for number in numbers])
        for mark, numbers in pieces
    ]
    return Reread(iter(held), epochs or {}, batch_of().schema, lambda mark: mark == "nobody", counts or {})


def lines_of(view: LogView, held: Reread, later: LogView | None = None) -> tuple[list[AuditLine], int]:
    expected = Expected.of(view, "s")
    found = group_by_epoch(tally(held), held, expected, Expected.of(later or view, "s"))
    return judge_epochs(expected, found, held.unmarked)


def test_epochs_that_differ_are_named_and_the_others_proven(writer: LogWriter) -> None:
    for epoch in range(4):
        decided(writer, epoch, committable(epoch, 2 * epoch, 2 * epoch + 1))
    view = read(writer.store)
    held = (("m3", (6, 6)), ("m0", (1,)), ("m0", (0,)), ("m1", (2,)), ("m2", (5, 4)), ("nobody", (9,)))
    lines, foreign = lines_of(view, reread(*held))
    good, bad = EpochVerdict.PROVEN, EpochVerdict.DIFFERS
    assert lines == [
        AuditLine(0, 2, 2, good),
        AuditLine(1, 2, 1, bad),
        AuditLine(2, 2, 2, good),
        AuditLine(3, 2, 2, bad),
    ]
    assert foreign == 1


def test_a_mark_that_nobody_knows_is_foreign_where_nothing_older_was_written(writer: LogWriter) -> None:
    decided(writer, 0, committable(0, 1))
    lines, foreign = lines_of(read(writer.store), reread(("m0", (1,)), ("m7", (1,))))
    assert ([line.verdict for line in lines], foreign) == ([EpochVerdict.PROVEN], 1)


def test_older_epochs_are_judged_by_their_sum(writer: LogWriter) -> None:
    for epoch in range(300):
        decided(writer, epoch, committable(epoch, epoch))
    view = read(writer.store)
    all_of_it = [(f"m{epoch}", (epoch,)) for epoch in range(300)]
    lines, _ = lines_of(view, reread(*all_of_it))
    assert {line.verdict for line in lines} == {EpochVerdict.PROVEN}
    assert lines[0].epoch is None
    lines, _ = lines_of(view, reread(*all_of_it[1:]))
    assert [line.epoch for line in lines if line.verdict is EpochVerdict.DIFFERS] == [None]
    by_the_ledger = [("x5", (5,)), *(one for one in all_of_it if one[0] != "m5")]
    lines, foreign = lines_of(view, reread(*by_the_ledger, epochs={"x5": 5}))
    assert ({line.verdict for line in lines}, foreign) == ({EpochVerdict.PROVEN}, 0)
    lines, _ = lines_of(view, reread(*all_of_it[1:], counts={0: 1, 299: 1}))
    assert [line for line in lines if line.verdict is EpochVerdict.DIFFERS][1] == AuditLine(
        0, 1, 0, EpochVerdict.DIFFERS
    )


def test_rows_of_old_upserts_that_later_ones_overwrote_are_not_missing(writer: LogWriter) -> None:
    """Of older epochs, the ledger has the number of rows that they wrote; more of them cannot be in the table."""
    for epoch in range(300):
        decided(writer, epoch, msgspec.structs.replace(committable(epoch, epoch), proof=None))
    view = read(writer.store)
    assert min(Expected.of(view, "s").epochs) > 5
    marks = {f"m{epoch}": epoch for epoch in range(300)}
    overwritten = reread(("m0", (0,)), ("m299", (299,)), counts={0: 2, 1: 1}, epochs=marks)
    lines, _ = lines_of(view, overwritten)
    assert {line.verdict for line in lines} == {EpochVerdict.UNPROVEN}
    added = reread(("m0", (0,)), ("m0", (1,)), counts={0: 1, 1: 1}, epochs=marks)
    lines, _ = lines_of(view, added)
    assert [line.epoch for line in lines if line.verdict is EpochVerdict.DIFFERS] == [0]


def test_a_target_that_forgot_who_wrote_what_is_proven_as_a_whole(writer: LogWriter) -> None:
    for epoch in range(3):
        decided(writer, epoch, committable(epoch, epoch))
    view = read(writer.store)
    assert lines_of(view, reread(("restored", (2, 0, 1)))) == ([AuditLine(None, 3, 3, EpochVerdict.PROVEN)], 0)
    lines, foreign = lines_of(view, reread(("restored", (2, 0, 0))))
    assert (len(lines), foreign) == (3, 3)


def test_epochs_from_before_a_rewind_are_judged_together(writer: LogWriter) -> None:
    for epoch in range(3):
        decided(writer, epoch, committable(epoch, epoch, mark="none"))
    view = read(writer.store)
    held = reread(("x", (0, 1)), ("y", (2,)), ("z", (7,)), epochs={"y": 2})._replace(unmarked={0, 1})
    expected = Expected.of(view, "s")
    assert expected.without({0, 1}).older == Wrote(2, hash_of(0, 1))
    view = without_marks(view)
    lines, foreign = lines_of(view, held)
    assert [(line.epoch, line.verdict) for line in lines] == [(None, EpochVerdict.DIFFERS), (2, EpochVerdict.PROVEN)]
    assert foreign == 0


def test_epochs_that_come_in_while_the_target_is_read_are_not_judged(writer: LogWriter) -> None:
    decided(writer, 0, committable(0, 1))
    before = read(writer.store)
    decided(writer, 1, committable(1, 2), complete=False)
    lines, foreign = lines_of(before, reread(("m0", (1,)), ("m1", (2,))), read(writer.store))
    assert ([line.verdict for line in lines], foreign) == ([EpochVerdict.PROVEN], 0)
    writer.complete(1)
    check_overlap(before, read(writer.store))
    for epoch in range(2, 300):
        decided(writer, epoch, committable(epoch, epoch))
    with pytest.raises(ConfigurationError, match="no longer says"):
        check_overlap(before, read(writer.store))


def test_sums_of_hashes_add_up() -> None:
    assert total([hash_of(1), hash_of(2)]) == hash_of(1, 2)
    assert without(hash_of(1, 2), hash_of(2)) == hash_of(1)
    assert Wrote().plus(Wrote(1, hash_of(1))).hash == hash_of(1)
    assert hash_of() == NO_ROWS


def test_offsets_are_found_in_the_input_of_spark_and_of_the_engine() -> None:
    spark = ['{"orders":{"0":5,"1":7}}', '{"other":{"0":1}}', "-"]
    engine = {"source": [{"orders": {"0": 5}}, {"orders": {"1": 7}}]}
    assert offsets_in(spark, "orders") == offsets_in(engine, "orders") == {"0": 5, "1": 7}
    assert offsets_in(None, "orders") == offsets_in([{"orders": "x"}], "orders") == {}


def test_only_whole_record_batches_are_told() -> None:
    header = struct.Struct(">qiibIhiqqqhi")
    length = header.size - 12 + 4
    batch = header.pack(10, length, 0, 2, 0, 0x10, 2, 0, 0, 4001, 3, 0) + b"...."
    plain = header.pack(13, length, 0, 2, 0, 0, 0, 0, 0, -1, -1, 0) + b"...."
    assert list(_headers(batch + plain + batch[:-1])) == [(10, 12, "4001/3"), (13, 13, OUTSIDE)]


@pytest.mark.parametrize("text", ["orders", "redis:orders", "kafka:", "postgres:orders"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        place_of(text, Access(at=["kafka=localhost:9092"]))


def test_a_function_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot import no_such"):
        load_function("no_such:function")
