"""Reading and writing the decision log: floors, gaps, fencing, puts in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward.core.errors import (
    DecisionInDoubtError,
    EpochConflictError,
    FencedError,
    LogDamagedError,
    ProtocolError,
    StoreError,
)
from onceward.core.log import (
    Completed,
    Decide,
    EpochInput,
    LogWriter,
    Resolved,
    Rewound,
    RunWriters,
    Start,
    Void,
    audit_records,
    read,
)
from onceward.core.log.entries import Entry, encode, key_of
from onceward.core.log.view import check_next, fold

from .core_fakes import MemoryStore, answer_lost, not_written
from .store_contract import quick

if TYPE_CHECKING:
    from collections.abc import Callable

LOG: dict[str, Any] = {"pipeline": "p", "log": "0a0b0c0d"}


def start(position: int, writer: str = "w", log: str = "0a0b0c0d") -> Start:
    return Start(pipeline="p", log=log, position=position, writer_id=writer, start=position)


def decide_entry(position: int, epoch: int, started: int = 0) -> Decide:
    return Decide(**LOG, position=position, writer_id="w", start=started, epoch=epoch)


def completed_entry(position: int, epoch: int, floor: int, started: int = 0) -> Completed:
    return Completed(**LOG, position=position, writer_id="w", start=started, epoch=epoch, floor=floor)


def store_with(*entries: Entry) -> MemoryStore:
    store = MemoryStore()
    for entry in entries:
        store.entries[key_of(entry.position)] = encode(entry)
    return store


def writer_on(store: MemoryStore, tries: int = 3) -> LogWriter:
    return LogWriter(store, "p", quick(tries))


def run_epochs(writer: LogWriter, *epochs: int) -> None:
    for epoch in epochs:
        writer.decide(epoch, [], sinks=["a"], epoch_input=EpochInput(end=epoch))
        writer.complete(epoch)


class TestReading:
    def test_an_empty_log_says_nothing(self):
        view = read(MemoryStore())
        assert (view.tail, view.decided, view.completed, view.start, view.log) == (-1, -1, -1, -1, "")
        assert view.permit() is None
        assert view.at(0) is None

    def test_what_is_below_the_floor_is_void_even_if_it_is_damaged(self):
        store = store_with(decide_entry(4, 7), completed_entry(5, 7, floor=4))
        store.entries[key_of(3)] = b"put by a zombie into the hole that pruning left"
        view = read(store)
        assert (view.floor, view.tail, view.decided, view.completed) == (4, 5, 7, 7)
        assert view.at(3) is None

    def test_a_half_finished_pruning_changes_nothing(self):
        full = [start(0), decide_entry(1, 0), completed_entry(2, 0, 1), decide_entry(3, 1), completed_entry(4, 1, 3)]
        views = [read(store_with(*full[pruned:])) for pruned in range(4)]
        assert {(v.tail, v.floor, v.decided, v.completed, len(v.entries)) for v in views} == {(4, 3, 1, 1, 2)}

    def test_the_newest_writer_is_known_after_its_start_was_pruned(self):
        view = read(store_with(decide_entry(4, 7, started=2), completed_entry(5, 7, floor=4, started=2)))
        assert (view.start, view.writer_id) == (2, "w")

    @pytest.mark.parametrize("missing", [0, 1, 2])
    def test_a_gap_above_the_floor_is_an_error_that_names_the_missing_entry(self, missing: int):
        store = store_with(start(0), decide_entry(1, 0), completed_entry(2, 0, floor=0), start(3))
        del store.entries[key_of(missing)]
        with pytest.raises(LogDamagedError, match=f"gap: entry {missing} is missing"):
            read(store)

    def test_an_entry_that_is_pruned_while_the_log_is_read_is_looked_for_again(self):
        store = store_with(start(0), decide_entry(1, 0), completed_entry(2, 0, floor=1))
        later = store_with(decide_entry(3, 1), completed_entry(4, 1, floor=3)).entries
        listed = store.list_keys

        def list_and_then_go_on() -> list[str]:
            keys = listed()
            store.entries = later
            return keys

        store.list_keys = list_and_then_go_on  # type: ignore[method-assign]
        assert (read(store).tail, read(store).floor) == (4, 3)

    def test_a_void_entry_in_a_slot_that_was_pruned_after_it_was_listed_is_no_damage(self):
        """A starter that slept since the log was empty puts its START, of another log, into the hole."""
        for void in (encode(start(0, log="ffffffff")), b"damaged"):
            store = store_with(start(0), decide_entry(1, 0))
            listed = store.list_keys

            def list_and_then_be_overtaken(store=store, listed=listed, void=void) -> list[str]:
                keys = listed()
                store.list_keys = listed
                store.entries[key_of(2)] = encode(completed_entry(2, 0, floor=1))
                store.entries[key_of(0)] = void
                return keys

            store.list_keys = list_and_then_be_overtaken  # type: ignore[method-assign]
            assert (read(store).completed, read(store).log) == (0, "0a0b0c0d")

    def test_damage_in_a_log_that_goes_on_is_still_damage(self):
        store = store_with(start(0), decide_entry(1, 0))
        store.entries[key_of(1)] = b"damaged"
        listed, count = store.list_keys, iter(range(2, 1000))

        def list_a_growing_log() -> list[str]:
            store.entries[key_of(next(count))] = b"more"
            return listed()

        store.list_keys = list_a_growing_log  # type: ignore[method-assign]
        with pytest.raises(LogDamagedError, match="has a gap: entry 40 of the decision log is damaged"):
            read(store)

    def test_entries_of_two_logs_in_one_store_are_refused(self):
        with pytest.raises(LogDamagedError, match="entry 1 belongs to another decision log"):
            read(store_with(start(0), start(1, log="ffffffff")))

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ([decide_entry(0, 0), decide_entry(1, 1)], "decides epoch 1 while epoch 0 is not completed"),
            ([decide_entry(0, 0), completed_entry(1, 0, 0), decide_entry(2, 2)], "decides epoch 2 after epoch 0"),
            ([decide_entry(0, 0), completed_entry(1, 5, 0)], "completes epoch 5, but epoch 0"),
        ],
    )
    def test_entries_that_break_the_rules_are_refused(self, entries: list[Entry], message: str):
        with pytest.raises(LogDamagedError, match=message):
            fold(entries)

    def test_any_epoch_may_come_first_and_then_only_the_next(self):
        check_next(fold([start(0)]), 7)
        view = fold([start(0), decide_entry(1, 7), completed_entry(2, 7, 1)])
        check_next(view, 8)
        for epoch in (6, 7, 9):
            with pytest.raises(EpochConflictError, match="only epoch 8 can be decided next"):
                check_next(view, epoch)
        with pytest.raises(EpochConflictError, match="must be finished first"):
            check_next(fold([start(0), decide_entry(1, 7)]), 8)


class TestRewindAndVoid:
    def test_after_a_rewind_only_its_epoch_is_next(self):
        for epoch in (0, 1, 3):
            writer = writer_on(MemoryStore())
            writer.start()
            run_epochs(writer, 0, 1, 2, 3)
            writer.rewind(Rewound(query="q", epoch=epoch, why="wrong code"))
            for other in {0, 1, 2, 3, 4, 9} - {epoch}:
                with pytest.raises(EpochConflictError):
                    writer.decide(other, [], sinks=["a"], epoch_input=EpochInput())
            run_epochs(writer, epoch, epoch + 1)
            assert read(writer.store).decided == epoch + 1

    def test_a_voided_epoch_is_the_next_one_again(self):
        for epoch in (0, 2):
            writer = writer_on(MemoryStore())
            writer.start()
            run_epochs(writer, *range(epoch))
            writer.decide(epoch, [], sinks=["a"], epoch_input=EpochInput())
            writer.void(epoch, ["gone"])
            assert writer.view.permit() is None
            for other in {0, 1, 2, 3} - {epoch}:
                with pytest.raises(EpochConflictError):
                    writer.decide(other, [], sinks=["a"], epoch_input=EpochInput())
            run_epochs(writer, epoch)
            assert read(writer.store).completed == epoch

    def test_a_void_without_its_decision_leaves_the_input_open(self):
        entries = [completed_entry(4, 2, 3), Void(**LOG, position=5, writer_id="w", start=0, epoch=3, proofs=())]
        assert fold(entries).before is None

    def test_resolved_transactions_are_skipped_until_the_next_decision(self):
        writer = writer_on(MemoryStore())
        writer.start()
        writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        writer.resolve(0, "t", action="skip", who="me", why="lost")
        assert read(writer.store).skipped == {"t"}
        writer.complete(0)
        run_epochs(writer, 1)
        assert read(writer.store).skipped == set()


class TestFencing:
    def test_a_store_that_went_back_gets_no_entry_behind_a_gap(self):
        """Its server failed over to a standby that lacked the newest entry."""
        for append in ("complete", "bar"):
            store = MemoryStore()
            mine = writer_on(store)
            mine.start()
            mine.decide(0, [], sinks=["a"], epoch_input=EpochInput())
            lost = store.entries.pop(max(store.entries))
            with pytest.raises(LogDamagedError, match="has lost entry 1, which this writer had written"):
                mine.complete(0) if append == "complete" else mine.bar()
            assert list(store.entries) == [key_of(0)]
            store.entries[key_of(1)] = lost
            mine.complete(0)
            assert read(store).completed == 0

    def test_nothing_is_put_behind_another_entry_in_the_place_of_ones_own(self):
        """A standby without it has been used: behind that entry, a bar would seem to be the newest START."""
        store = MemoryStore()
        other, mine = writer_on(store), writer_on(store)
        other.start()
        older = dict(store.entries)
        mine.start()
        whole, store.entries = store.entries, older
        other.bar()
        for put in (mine.bar, lambda: mine.decide(0, [], sinks=["a"], epoch_input=EpochInput())):
            with pytest.raises(LogDamagedError, match="has lost entry 1, which this writer had written"):
                put()
        assert len(store.entries) == 2
        store.entries = whole
        mine.decide(0, [], sinks=["a"], epoch_input=EpochInput())

    def test_an_entry_that_is_pruned_while_the_log_is_read_is_not_taken_for_lost(self):
        """Another run goes on meanwhile, and a START that was sent long ago lands in the slot, where it is void."""
        store = MemoryStore()
        mine, other = writer_on(store), writer_on(store)
        mine.start()
        get = store.get

        def get_late(key: str) -> bytes | None:
            store.get = get
            other.start()
            run_epochs(other, 0, 1, 2)
            assert key_of(0) not in store.entries
            store.entries[key_of(0)] = encode(start(0, "long ago"))
            return get(key)

        store.get = get_late
        assert not mine.still_newest()

    @pytest.mark.parametrize("is_used", [False, True])
    def test_a_view_that_is_older_than_what_the_writer_has_written_is_not_believed(self, is_used: bool):
        """With it, an epoch would be decided again once the right server is back."""
        store = MemoryStore()
        mine = writer_on(store)
        mine.start()
        older = dict(store.entries)
        run_epochs(mine, 0)
        whole, store.entries = store.entries, older
        if is_used:
            other = writer_on(store)
            other.start()
            other.bar()
            other.bar()
        for look in (mine.look, mine.still_newest):
            with pytest.raises(LogDamagedError, match="has lost entry 2, which this writer had written"):
                look()
        store.entries = whole
        assert mine.still_newest()
        with pytest.raises(EpochConflictError, match="the newest decided epoch is 0"):
            mine.decide(0, [], sinks=["a"], epoch_input=EpochInput())

    def test_a_gap_right_below_a_decision_is_repaired(self):
        """The server failed over after the writer had seen that its last entry was there."""
        store, kept = MemoryStore(), {}
        mine = writer_on(store)
        mine.start()
        for epoch in (0, 1, 2):
            mine.decide(epoch, [], sinks=["a"], epoch_input=EpochInput(query="q", start=epoch, end=epoch + 1))
            if epoch < 2:
                mine.complete(epoch)
            if epoch == 0:
                kept = dict(store.entries)
        store.entries = {**kept, max(store.entries): store.entries[max(store.entries)]}
        with pytest.raises(LogDamagedError, match=r"entry 4 is missing .*`onceward repair-log` says"):
            writer_on(store).start()
        expected = mine.view
        view = writer_on(store).start("repair-log", repairs=True)
        assert (view.undone, view.reached, view.before) == (expected.undone, expected.reached, expected.before)
        with pytest.raises(FencedError):
            mine.complete(2)
        next_one = writer_on(store)
        assert next_one.start().permit() is not None
        next_one.resolve(2, "", action="repair", who="me", why="failover")
        next_one.complete(2)
        next_one.decide(3, [], sinks=["a"], epoch_input=EpochInput(query="q", start=3, end=4))
        next_one.complete(3)
        assert read(store).completed == 3
        assert [record.action for record in audit_records(store) if isinstance(record, Resolved)] == ["repair"]
        with pytest.raises(LogDamagedError, match="has no gap: there is nothing to repair"):
            writer_on(store).start("repair-log", repairs=True)

    @pytest.mark.parametrize(
        ("entry", "kind"),
        [
            (completed_entry(9, 3, floor=1), "COMPLETED"),
            (start(9), "START"),
            (Void(**LOG, position=9, writer_id="w", start=0, epoch=3, proofs=()), "VOID"),
        ],
    )
    def test_a_gap_below_another_entry_is_not_repaired(self, entry: Entry, kind: str):
        """What was decided below it is not known: its rows may be committed."""
        store = store_with(start(0), decide_entry(1, 0))
        store.entries[key_of(9)] = encode(entry)
        before = dict(store.entries)
        with pytest.raises(LogDamagedError, match=rf"a gap below entry 9, and that entry \({kind}\) does not say"):
            writer_on(store).start("repair-log", repairs=True)
        assert store.entries == before

    def test_a_start_fences_every_older_writer_at_once(self):
        store = MemoryStore()
        old, new = writer_on(store), writer_on(store)
        old.start()
        new.start()
        for call in (
            lambda: old.decide(0, [], sinks=["a"], epoch_input=EpochInput()),
            lambda: old.complete(0),
            lambda: old.rewind(Rewound(query="q", epoch=0, why="why")),
            old.bar,
        ):
            with pytest.raises(FencedError):
                call()
        assert not old.still_newest()
        assert new.still_newest()

    def test_audit_records_outlive_every_pruning_by_whichever_writer(self):
        store = MemoryStore()
        writer = writer_on(store)
        writer.start()
        writer.decide(0, [], sinks=["a"], epoch_input=EpochInput(end=0))
        writer.resolve(0, "t", action="skip", who="somebody", why="lost")
        writer.complete(0)
        run_epochs(writer, 1, 2, 3)
        later = writer_on(store)
        later.start()
        run_epochs(later, 4, 5)
        [record] = audit_records(store)
        assert isinstance(record, Resolved)
        assert (record.transaction, record.who) == ("t", "somebody")
        assert read(store).completed == 5
        assert len(store.entries) == 3  # the record, and the newest epoch's two

    def test_the_proofs_of_a_replay_are_kept(self):
        store = MemoryStore()
        writer = writer_on(store)
        writer.start()
        writer.decide(0, [], sinks=["a"], epoch_input=EpochInput(end=0))
        writer.void(0, ["t: expired"])
        run_epochs(writer, 0, 1, 2)
        [record] = audit_records(store)
        assert isinstance(record, Void)
        assert (record.epoch, record.proofs) == (0, ("t: expired",))

    def test_nothing_is_pruned_before_the_floor_above_it_is_durable(self):
        store = MemoryStore()
        writer = writer_on(store)
        writer.start()
        run_epochs(writer, 0)
        writer.decide(1, [], sinks=["a"], epoch_input=EpochInput(end=1))
        before = sorted(store.entries)
        store.put_faults = [not_written] * 9
        with pytest.raises(DecisionInDoubtError):
            writer.complete(1)
        assert sorted(store.entries) == before
        store.put_faults.clear()
        writer.complete(1)
        assert key_of(writer.token.last) in store.entries
        assert key_of(0) not in store.entries

    def test_a_log_of_another_pipeline_is_refused_and_left_as_it_is(self):
        store = MemoryStore()
        mine = writer_on(store)
        mine.start()
        with pytest.raises(EpochConflictError, match="belongs to pipeline 'p'"):
            LogWriter(store, "q", quick()).start()
        run_epochs(mine, 0)

    def test_a_writer_is_still_the_newest_after_its_start_was_pruned(self):
        writer = writer_on(MemoryStore())
        writer.start()
        for epoch in range(4):
            run_epochs(writer, epoch)
            assert writer.still_newest()

    def test_a_writer_can_be_resumed_after_its_start_was_pruned(self):
        store = MemoryStore()
        first = writer_on(store)
        first.start()
        run_epochs(first, 0, 1)
        second = LogWriter.resume(store, "p", quick(), first.token)
        run_epochs(second, 2)
        with pytest.raises(FencedError, match="the log's tail is entry"):
            LogWriter.resume(store, "p", quick(), first.token)
        with pytest.raises(FencedError):
            first.decide(2, [], sinks=["a"], epoch_input=EpochInput())

    def test_a_writer_that_slept_through_the_pruning_is_fenced_though_its_put_wins(self):
        """Scenario 92."""
        store = MemoryStore()
        sleeper, live = writer_on(store), writer_on(store)
        sleeper.start()
        slot = key_of(sleeper.token.last + 1)

        def put_after_the_pruning(effect: Callable[[], bool]) -> bool:
            live.start()
            run_epochs(live, 0, 1, 2)
            assert slot not in store.entries
            return effect()

        store.put_faults = [put_after_the_pruning]
        with pytest.raises(FencedError, match="below the floor"):
            sleeper.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        assert slot in store.entries
        assert read(store).decided == 2
        run_epochs(live, 3)
        assert slot not in store.entries

    def test_a_writer_that_wakes_after_the_pruning_puts_nothing(self):
        store = MemoryStore()
        sleeper, live = writer_on(store), writer_on(store)
        sleeper.start()
        live.start()
        run_epochs(live, 0, 1, 2)
        before = dict(store.entries)
        with pytest.raises(FencedError, match="was pruned"):
            sleeper.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        assert store.entries == before

    def test_a_starter_that_slept_through_the_pruning_is_fenced_though_its_start_wins(self):
        """Scenario 92."""
        store = MemoryStore()
        live, sleeper = writer_on(store), writer_on(store)
        put = store.put_if_absent

        def after_a_long_sleep(key: str, data: bytes) -> bool:
            store.put_if_absent = put  # type: ignore[method-assign]
            live.start()
            run_epochs(live, 0, 1, 2)
            return put(key, data)

        store.put_if_absent = after_a_long_sleep  # type: ignore[method-assign]
        with pytest.raises(FencedError):
            sleeper.start()
        run_epochs(live, 3)

    def test_a_starter_that_always_comes_second_gives_up(self):
        store = MemoryStore()

        def somebody_was_quicker(effect: Callable[[], bool]) -> bool:
            store.put_faults.clear()
            writer_on(store).start()
            store.put_faults.append(somebody_was_quicker)
            return effect()

        store.put_faults.append(somebody_was_quicker)
        with pytest.raises(FencedError, match="another writer started first, 3 times in a row"):
            writer_on(store, tries=2).start()

    def test_a_starter_that_is_fenced_before_it_has_looked_says_so(self):
        store = MemoryStore()
        listed = store.list_keys
        calls = iter(range(100))

        def second_look_finds_another() -> list[str]:
            if next(calls) == 1:
                store.list_keys = listed  # type: ignore[method-assign]
                writer_on(store).start()
            return listed()

        store.list_keys = second_look_finds_another  # type: ignore[method-assign]
        with pytest.raises(FencedError, match="later START"):
            writer_on(store).start()

    def test_a_pruned_log_is_no_reason_to_lose_the_fence(self):
        """Only what is below a durable floor is deleted, in ascending order, whatever fails."""
        store = MemoryStore()
        writer = writer_on(store)
        writer.start()
        store.delete_faults = 1
        run_epochs(writer, 0)
        assert key_of(0) in store.entries
        store.entries["not a key"] = b"kept"
        run_epochs(writer, 1)
        assert sorted(store.entries) == [key_of(3), key_of(4), "not a key"]


class TestARunThatStartsAgain:
    """It must not drive out a run that has started since."""

    def again(self, store: MemoryStore, run: RunWriters) -> LogWriter:
        return LogWriter(store, "p", quick(), run)

    def test_it_starts_again_and_again_if_it_is_alone(self):
        store, run = MemoryStore(), RunWriters()
        run_epochs(started(writer_on(store)), 0)  # of an older run
        for epoch in range(1, 4):
            writer = started(self.again(store, run))
            run_epochs(writer, epoch)
        assert read(store).decided == 3

    @pytest.mark.parametrize("epochs", [0, 1, 5], ids="{} epochs".format)
    @pytest.mark.parametrize("own", [0, 1, 5], ids="after {} of its own".format)
    def test_it_does_not_start_after_another_run(self, own: int, epochs: int):
        """Whether the other one's START is still in the log, or pruned."""
        store, run = MemoryStore(), RunWriters()
        run_epochs(started(self.again(store, run)), *range(own))
        other = started(writer_on(store))
        run_epochs(other, *range(own, own + epochs))
        before = dict(store.entries)
        with pytest.raises(FencedError, match="of another run, which has started since"):
            self.again(store, run).start()
        assert store.entries == before
        run_epochs(other, own + epochs)

    @pytest.mark.parametrize("own", [0, 1, 5])
    def test_it_goes_on_after_an_operator_has_ended_its_transactions(self, own: int):
        store, run = MemoryStore(), RunWriters()
        writer = started(self.again(store, run))
        run_epochs(writer, *range(own))
        writer.decide(own, [], sinks=["a"], epoch_input=EpochInput())
        tool = writer_on(store)
        tool.start("txn commit")
        tool.complete(own)
        run_epochs(started(self.again(store, run)), own + 1)
        assert read(store).completed == own + 1

    def test_nor_after_another_run_and_an_operator(self):
        store, run = MemoryStore(), RunWriters()
        started(self.again(store, run))
        started(writer_on(store))
        writer_on(store).start("txn abort")
        with pytest.raises(FencedError, match="of another run"):
            self.again(store, run).start()

    def test_a_start_that_may_not_have_been_written_is_no_reason_to_stop(self):
        store, run = MemoryStore(), RunWriters()
        run_epochs(started(writer_on(store)), 0, 1)  # of an older run
        store.put_faults = [not_written] * 20
        with pytest.raises(StoreError):
            self.again(store, run).start()
        store.put_faults = []
        run_epochs(started(self.again(store, run)), 2)

    def test_it_may_start_again_after_it_has_barred_its_own_decision(self):
        store, run = MemoryStore(), RunWriters()
        started(self.again(store, run)).bar()
        run_epochs(started(self.again(store, run)), 0)


def started(writer: LogWriter) -> LogWriter:
    writer.start()
    return writer


class TestPutsInDoubt:
    def test_an_answer_that_was_lost_is_asked_for_until_it_is_definite(self):
        store = MemoryStore()
        writer = writer_on(store)
        store.put_faults = [answer_lost]
        writer.start()
        store.put_faults = [not_written, answer_lost, answer_lost]
        permit = writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        assert permit.decision == read(store).undone

    def test_reads_that_fail_are_repeated_too(self):
        store = MemoryStore()
        writer = writer_on(store)
        writer.start()
        store.put_faults = [lambda effect: effect() and store.__setattr__("read_faults", 2) is None]
        writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        assert read(store).decided == 0

    @pytest.mark.parametrize("fault", [not_written, answer_lost])
    def test_a_writer_in_doubt_offers_nothing_else_for_the_slot(self, fault: Callable[[Callable[[], bool]], bool]):
        store = MemoryStore()
        writer = writer_on(store, tries=1)
        writer.start()
        store.put_faults = [fault, fault]
        with pytest.raises(DecisionInDoubtError, match="may or may not be written"):
            writer.decide(0, [], sinks=["a"], epoch_input=EpochInput(digest="one"))
        with pytest.raises(ProtocolError, match="in doubt: nothing else may be offered"):
            writer.decide(0, [], sinks=["a"], epoch_input=EpochInput(digest="two"))
        assert len(store.entries) == (2 if fault is answer_lost else 1)

    def test_the_same_bytes_may_be_offered_again(self):
        store = MemoryStore()
        writer = writer_on(store, tries=1)
        writer.start()
        store.put_faults = [answer_lost, answer_lost]
        with pytest.raises(DecisionInDoubtError):
            writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        assert read(store).decided == 0

    def test_a_start_in_the_slot_bars_a_decision_in_doubt(self):
        store = MemoryStore()
        writer = writer_on(store, tries=0)
        writer.start()
        late: list[Callable[[], bool]] = []

        def lands_later(effect: Callable[[], bool]) -> bool:
            late.append(effect)
            raise StoreError("timeout")

        store.put_faults = [lands_later]
        with pytest.raises(DecisionInDoubtError):
            writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        writer.bar()
        assert late[0]() is False
        assert read(store).decided == -1

    def test_a_decision_that_landed_cannot_be_barred(self):
        store = MemoryStore()
        writer = writer_on(store, tries=0)
        writer.start()
        store.put_faults = [answer_lost]
        with pytest.raises(DecisionInDoubtError):
            writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        with pytest.raises(FencedError, match="entry 1 was written by another writer"):
            writer.bar()

    @pytest.mark.parametrize("fault", [not_written, answer_lost])
    def test_an_entry_that_bars_the_decision_can_be_put_again_after_a_doubt_and_leaves_no_gap(
        self, fault: Callable[[Callable[[], bool]], bool]
    ):
        store = MemoryStore()
        writer = writer_on(store, tries=0)
        writer.start()
        store.put_faults = [fault]
        with pytest.raises(StoreError):
            writer.bar()
        writer.bar()
        assert [key_of(n) for n in range(read(store).tail + 1)] == sorted(store.entries)
        run_epochs(writer, 0)

    def test_a_damaged_log_leaves_the_put_in_doubt(self):
        store = MemoryStore()
        writer = writer_on(store)
        writer.start()
        store.entries[key_of(0)] = b"damaged"
        with pytest.raises(DecisionInDoubtError, match="entry 0 of the decision log is damaged"):
            writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
