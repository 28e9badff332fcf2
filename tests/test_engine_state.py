"""State backends, shared files, and how state is dealt out at a restore. SCENARIOS 83 to 86."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from rocksdict import Options, Rdict

from onceward.core import FileBackend, MemoryBackend, OperatorState, ProcessFunction, RocksDBBackend
from onceward.core.engine import completion
from onceward.core.engine.channels import Barrier, TaskId, by_key
from onceward.core.engine.completion import Completer
from onceward.core.engine.coordinator_events import Pending
from onceward.core.engine.graph import Graph
from onceward.core.engine.reference import Reference, load_metadata, prove
from onceward.core.engine.retention import Retained, SharedFiles
from onceward.core.engine.start import assign
from onceward.core.engine.state import keys, rocksdb
from onceward.core.engine.state.handles import (
    KeyedHandle,
    ListHandle,
    Metadata,
    OperatorRecord,
    SubtaskState,
    decode_metadata,
    encode_metadata,
)
from onceward.core.engine.state.keyed import KeyScope
from onceward.core.engine.state.memory import cells_of
from onceward.core.engine.state.row_store import decode_cells, encode_cells
from onceward.core.engine.state.storage import CheckpointStorage, folder_of
from onceward.core.engine.state_compatibility import check_fits
from onceward.core.errors import ConfigurationError, OncewardError, StateDamagedError, StateError

if TYPE_CHECKING:
    from onceward.core.engine.state.rocksdb import RocksTable
    from onceward.core.engine.state.row_store import KeyedTable

TASK = TaskId("sum", 0)
ALL = range(128)


def row(key: str, state: str = "total") -> bytes:
    encoded = keys.encode_key(key)
    return keys.row(keys.group_of(encoded, 128), state, encoded)


def snapshot(table: Any, storage: CheckpointStorage | None, checkpoint: int, *, full: bool = False) -> KeyedHandle:
    freezing = table.freeze(checkpoint, full=full)
    handle, _ = freezing.write(storage, f"chk-{checkpoint}")
    freezing.discard()
    return handle


def backends(folder: Path) -> dict[str, Any]:
    return {
        "memory": MemoryBackend(),
        "files": FileBackend(folder / "files"),
        "rocksdb": RocksDBBackend(folder / "rocks"),
        "rocksdb in full": RocksDBBackend(folder / "full", incremental=False),
    }


KINDS = list(backends(Path("/nowhere")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_holds_rows_of_columns(tmp_path: Path, kind: str):
    table = backends(tmp_path)[kind].open(TASK, ALL, [], None)
    table.put(row("a"), b"1")
    table.put(row("a", "map"), b"x", b"c2")
    table.put(row("a", "map"), b"y", b"c1")
    table.put(row("ab", "map"), b"z", b"c1")
    assert table.get(row("a")) == b"1"
    assert table.get(row("b")) is None
    assert list(table.columns(row("a", "map"))) == [(b"c1", b"y"), (b"c2", b"x")]
    table.delete(row("a", "map"), b"c2")
    table.delete(row("never", "map"), b"c2")
    assert list(table.columns(row("a", "map"))) == [(b"c1", b"y")]
    assert len(list(table.scan(b""))) == 3
    prefix = keys.row_prefix(keys.group_of(keys.encode_key("a"), 128), "map")
    assert [cell[2] for cell in table.scan(prefix)][:1] == [b"y"]
    table.close()


def test_rocksdb_with_what_it_keeps_near_holds_what_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever is done in whatever order, and however little is kept near."""
    for seed in range(10):
        monkeypatch.setattr(rocksdb, "_NEAR_BYTES", 300 * seed**2)
        chance = random.Random(seed)
        tables = [backends(tmp_path)[kind].open(TASK, ALL, [], None) for kind in ("memory", "rocksdb")]
        for _ in range(200):
            step = chance.random()
            memory, rocks = (random_step(table, random.Random(step)) for table in tables)
            assert memory == rocks
        for table in tables:
            table.close()


def random_step(table: KeyedTable, chance: random.Random) -> Any:
    """Do something with a table; what it answers."""
    one, column = row(f"k{chance.randrange(9)}"), chance.choice([b"", b"", b"c1", b"c2"])
    many = [row(f"k{chance.randrange(9)}") for _ in range(4)]
    values = [b"" if chance.random() < 0.2 else chance.randbytes(20) for _ in many]
    calls: dict[str, tuple[Any, ...]] = {
        "get": (one, column),
        "put": (one, values[0], column),
        "delete": (one, column),
        "columns": (one,),
        "get_many": (many,),
        "put_many": (many, values),
        "scan": (b"",),
    }
    name = chance.choice(list(calls))
    answer = getattr(table, name)(*calls[name])
    return list(answer) if name in {"columns", "scan"} else answer


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_changed_after_the_freeze_is_not_in_the_snapshot(tmp_path: Path, kind: str):
    backend = backends(tmp_path)[kind]
    table = backend.open(TASK, ALL, [], None)
    table.put(row("a"), b"before")
    freezing = table.freeze(1)
    table.put(row("a"), b"after")
    table.put(row("b"), b"new")
    handle, _ = freezing.write(backend.storage, "chk-1")
    freezing.discard()
    restored = backend.open(TASK, ALL, [handle], backend.storage)
    assert restored.get(row("a")) == b"before"
    assert restored.get(row("b")) is None
    table.close()
    restored.close()


def test_a_key_may_be_longer_than_65535_bytes():
    cells = [(b"x" * 70_000, b"c" * 70_000, b"v" * 70_000), (b"y", b"", b"")]
    assert list(decode_cells(b"".join(encode_cells(cells)), "here")) == cells


def test_rows_of_the_first_format_are_read():
    """Two bytes held the length of a row."""
    written = b"onceward-rows/1\n" + struct.pack(">HIQ", 3, 2, 1) + b"rowcov" + struct.pack(">HIQ", 1, 0, 0) + b"y"
    assert list(decode_cells(written, "here")) == [(b"row", b"co", b"v"), (b"y", b"", b"")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("into", KINDS)
def test_a_savepoint_of_one_backend_is_restored_by_another(tmp_path: Path, kind: str, into: str):
    backend, other = backends(tmp_path / "a")[kind], backends(tmp_path / "b")[into]
    target = CheckpointStorage(tmp_path / "savepoint")
    table = backend.open(TASK, ALL, [], None)
    for n in range(200):
        table.put(row(f"k{n}"), str(n).encode())
    handle = snapshot(table, target, 1, full=True)
    table.close()
    restored = other.open(TASK, ALL, [handle], target)
    assert {cell[2] for cell in restored.scan(b"")} == {str(n).encode() for n in range(200)}
    restored.close()


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("into", KINDS)
def test_state_whose_folder_is_not_known_is_never_taken_for_empty(tmp_path: Path, kind: str, into: str):
    backend, other = backends(tmp_path / "a")[kind], backends(tmp_path / "b")[into]
    table = backend.open(TASK, ALL, [], None)
    table.put(row("a"), b"value")
    handle = snapshot(table, backend.storage, 1)
    table.close()
    with pytest.raises(StateDamagedError, match="needs the folder"):
        other.open(TASK, ALL, [handle], None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 5), (5, 2)])
def test_key_groups_are_dealt_to_another_number_of_subtasks(tmp_path: Path, kind: str, before: int, after: int):
    backend = backends(tmp_path)[kind]
    handles = []
    for subtask in range(before):
        groups = keys.groups_of(subtask, before, 128)
        table = backend.open(TaskId("sum", subtask), groups, [], None)
        for n in range(300):
            if keys.group_in(row(f"k{n}")) in groups:
                table.put(row(f"k{n}"), str(n).encode())
        handles.append(snapshot(table, backend.storage, subtask))
        table.close()
    found: list[bytes] = []
    for subtask in range(after):
        groups = keys.groups_of(subtask, after, 128)
        mine = [h for h in handles if h.first < groups.stop and groups.start < h.end]
        table = backend.open(TaskId("sum", subtask), groups, mine, backend.storage)
        cells = list(table.scan(b""))
        assert all(keys.group_in(cell[0]) in groups for cell in cells)
        found += [cell[2] for cell in cells]
        table.close()
    assert sorted(found) == sorted(str(n).encode() for n in range(300))


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 128])
def test_each_key_group_belongs_to_exactly_one_subtask(parallelism: int):
    dealt = [group for subtask in range(parallelism) for group in keys.groups_of(subtask, parallelism, 128)]
    assert dealt == list(range(128))
    for group in dealt:
        assert group in keys.groups_of(keys.subtask_of(group, parallelism, 128), parallelism, 128)


def test_a_keys_group_is_the_same_in_every_process():
    batch = pa.RecordBatch.from_pydict({"k": ["a", "b", "", "ä"]})
    found = keys.KeyEncoder(["k"]).distinct(batch)
    assert [keys.group_of(key, 128) for key in found.encoded] == [25, 35, 101, 96]


# Shared files of incremental snapshots


class Incremental:
    """RocksDB without compactions of its own, its shared files, and what refers to them."""

    def __init__(self, folder: Path) -> None:
        self.backend = RocksDBBackend(folder)
        self.storage: Any = self.backend.storage
        self.table: RocksTable = self.backend.open(TASK, ALL, [], None)  # type: ignore[assignment]
        self.db = self.table._db
        self.db.set_options({"disable_auto_compactions": "true"})
        self.registry = SharedFiles(self.storage.delete)
        self.handles: dict[int, KeyedHandle] = {}

    def file(self, letter: str) -> None:
        """Write keys into an SST file of their own; those of 1 to 3 and of 4 to 6 have one in common, so they merge."""
        for n in range(50):
            self.db[b"\x00\x00\x01" + letter.encode() + b"\x00\x00\x00\x02" + b"%02d" % n] = b"v" * 20
        common = b"1" if letter in "123" else b"4"
        self.db[b"\x00\x00\x01" + common + b"\x00\x00\x00\x02zz"] = letter.encode()
        self.db.flush()

    def compact(self, first: str, last: str) -> None:
        """Merge the files with keys of these letters."""
        self.db.compact_range(b"\x00\x00\x01" + first.encode(), b"\x00\x00\x01" + last.encode() + b"\xff")

    def checkpoint(self, number: int) -> list[str]:
        """Take one, complete it; its shared files' paths."""
        handle = snapshot(self.table, self.storage, number)
        self.registry.register(str(number), handle.files)
        self.table.confirm(number)
        self.handles[number] = handle
        return [ref.path for ref in handle.files if ref.shared]

    def drop(self, number: str) -> list[str]:
        """A checkpoint is not retained any more; its files that go with it."""
        gone = self.registry.release(number)
        self.registry.delete(gone)
        return gone

    def counts(self, *paths: str) -> list[int]:
        return [sum(path in used for used in self.registry._uses.values()) for path in paths]

    def on_disk(self) -> set[str]:
        return set(self.storage.shared_files())


def test_83_the_worked_example_of_four_checkpoints_with_two_retained(tmp_path: Path):
    """Counts and deletions, step by step, on real files of RocksDB."""
    rocks = Incremental(tmp_path)
    rocks.file("1")
    rocks.file("2")
    one, two = rocks.checkpoint(1)
    assert rocks.counts(one, two) == [1, 1]

    rocks.file("3")
    rocks.file("4")
    second = rocks.checkpoint(2)
    assert second[:2] == [one, two]
    three, four = second[2:]
    assert rocks.counts(one, two, three, four) == [2, 2, 1, 1]

    rocks.compact("1", "3")
    rocks.file("5")
    third = rocks.checkpoint(3)
    assert four in third
    merged, five = sorted((path for path in third if path != four), key=lambda path: -(tmp_path / path).stat().st_size)
    assert rocks.drop("1") == []
    assert rocks.counts(one, two, three, four, five, merged) == [1, 1, 1, 2, 1, 1]
    assert rocks.on_disk() == {one, two, three, four, five, merged}

    rocks.file("6")
    rocks.compact("4", "6")
    fourth = rocks.checkpoint(4)
    assert merged in fourth
    [again] = [path for path in fourth if path != merged]
    assert sorted(rocks.drop("2")) == sorted([one, two, three])
    assert rocks.counts(one, two, three, four, five, merged, again) == [0, 0, 0, 1, 1, 2, 1]
    assert rocks.on_disk() == {four, five, merged, again}

    for number in (3, 4):
        restored = rocks.backend.open(TASK, ALL, [rocks.handles[number]], rocks.storage)
        assert len(list(restored.scan(b""))) == 2 + 50 * (5 if number == 3 else 6)
        restored.close()
    rocks.table.close()


def test_84_an_aborted_upload_is_no_base_for_the_next_increment(tmp_path: Path):
    rocks = Incremental(tmp_path)
    rocks.file("1")
    [first] = rocks.checkpoint(1)
    rocks.file("2")
    aborted = snapshot(rocks.table, rocks.storage, 2)
    rocks.registry.delete(ref.path for ref in aborted.files)
    assert rocks.on_disk() == {first}
    third = rocks.checkpoint(3)
    assert third[0] == first
    assert set(third).isdisjoint({ref.path for ref in aborted.files} - {first})
    assert rocks.on_disk() == set(third)
    rocks.table.close()


def test_84_a_snapshot_that_fails_half_way_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rocks = Incremental(tmp_path)
    rocks.file("1")
    rocks.file("2")
    write, calls = rocks.storage.write, []

    def fails(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise StateError("no space left on device")
        return write(*arguments, **options)

    monkeypatch.setattr(rocks.storage, "write", fails)
    with pytest.raises(StateError, match="no space"):
        snapshot(rocks.table, rocks.storage, 1)
    assert rocks.on_disk() == set()
    rocks.table.close()


def test_a_forged_rocksdb_is_never_unpickled(tmp_path: Path):
    """rocksdict keeps Python objects as pickles, unless it is told that all values are bytes."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "owned",)

    made = Rdict(str(tmp_path / "db"), Options(raw_mode=False))
    made[b"k"] = Evil()
    made.flush()
    made.close()
    backend = RocksDBBackend(tmp_path / "state")
    storage = backend.storage
    files = [storage.copy_in(path, f"forged/{path.name}", shared=False) for path in (tmp_path / "db").iterdir()]
    handle = KeyedHandle(first=ALL.start, end=ALL.stop, form="rocksdb", files=tuple(files))
    with suppress(OncewardError, LookupError, ValueError):
        table = backend.open(TASK, ALL, [handle], storage)
        assert table.get(b"k") is None
        list(table.scan(b""))
        table.close()
    with suppress(OncewardError, LookupError, ValueError):
        list(rocksdb.cells_of_rocksdb(handle, storage, ALL))
    assert not (tmp_path / "owned").exists()
    assert Rdict(str(tmp_path / "db"))[b"k"] is None
    assert (tmp_path / "owned").exists()


def test_85_files_of_one_name_and_other_content_are_not_confused(tmp_path: Path):
    backend = RocksDBBackend(tmp_path)
    registry = SharedFiles(backend.storage.delete)  # type: ignore[union-attr]
    handles = []
    for subtask in range(2):
        table = backend.open(TaskId("sum", subtask), ALL, [], None)
        table.put(row("a"), f"of {subtask}".encode())
        handles.append(snapshot(table, backend.storage, 1 + subtask))
        table.close()
    names = [[ref.name for ref in handle.files if ref.shared] for handle in handles]
    assert names[0] == names[1]
    registry.register("1", [*handles[0].files, *handles[1].files])
    for subtask, handle in enumerate(handles):
        table = backend.open(TaskId("sum", subtask), ALL, [handle], backend.storage)
        assert table.get(row("a")) == f"of {subtask}".encode()
        table.close()


def test_86_a_restored_checkpoints_files_are_a_base_only_in_its_own_folder(tmp_path: Path):
    first = Incremental(tmp_path / "first")
    first.file("1")
    [path] = first.checkpoint(1)
    handle = first.handles[1]
    same = first.backend.open(TASK, ALL, [handle], first.storage)
    assert [ref.path for ref in snapshot(same, first.storage, 2).files if ref.shared] == [path]
    other = RocksDBBackend(tmp_path / "other")
    table = other.open(TASK, ALL, [handle], first.storage)
    copied = snapshot(table, other.storage, 2)
    assert all((tmp_path / "other" / ref.path).exists() for ref in copied.files)
    for opened in (same, table, first.table):
        opened.close()


def test_incremental_snapshots_upload_what_is_new(tmp_path: Path):
    rocks = Incremental(tmp_path)
    rocks.file("1")
    rocks.checkpoint(1)
    rocks.file("2")
    freezing = rocks.table.freeze(2)
    handle, written = freezing.write(rocks.storage, "chk-2")
    freezing.discard()
    new = sum(ref.size for ref in handle.files if not ref.shared) + max(ref.size for ref in handle.files if ref.shared)
    assert written <= new
    assert written < handle.size
    rocks.table.close()


# Files and metadata


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path):
    storage = CheckpointStorage(tmp_path)

    def broken() -> Any:
        yield b"half"
        raise OSError("disk full")

    with pytest.raises(StateError, match="disk full"):
        storage.write("chk-1/file", broken())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_every_flipped_byte_and_every_cut_of_metadata_is_seen():
    whole = encode_metadata(Metadata(pipeline="p", checkpoint=3, max_parallelism=128, operators={}))
    assert decode_metadata(whole, "x").checkpoint == 3
    for at in range(len(whole)):
        for damaged in (whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :], whole[:at]):
            with pytest.raises(StateDamagedError, match="metadata file x"):
                decode_metadata(damaged, "x")


def test_every_flipped_byte_and_every_cut_of_rows_is_seen(tmp_path: Path):
    backend = FileBackend(tmp_path)
    table = backend.open(TASK, ALL, [], None)
    table.put(row("a"), b"1")
    handle = snapshot(table, backend.storage, 1)
    path = tmp_path / handle.files[0].path
    whole = path.read_bytes()
    for at in range(len(whole)):
        for damaged in (whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :], whole[:at]):
            path.write_bytes(damaged)
            with pytest.raises(StateDamagedError, match=path.name.replace("[", r"\[")):
                list(cells_of(handle, backend.storage, ALL))


def test_checkpoints_are_kept_where_fsspec_can_write(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"nowhere://bucket/state cannot be opened: .*pip install fsspec"):
        FileBackend("nowhere://bucket/state")
    backend = FileBackend(f"file://{tmp_path}/a%20folder")
    table = backend.open(TASK, ALL, [], None)
    table.put(row("a"), b"1")
    handle = snapshot(table, backend.storage, 1)
    assert (tmp_path / "a folder" / handle.files[0].path).is_file()


# Dealing state out


class WithList(ProcessFunction):
    """Declares the state."""

    mine = OperatorState()


def a_graph(parallelism: int, **uids: str) -> Graph:
    graph = Graph(128)
    for uid, kind in (uids or {"fn": "process"}).items():
        graph.add(kind, WithList(), uid=uid, parallelism=parallelism, inputs=[])
    return graph


def with_lists(redistribute: str, *parts: list[int]) -> Metadata:
    packed = [[msgspec.msgpack.encode(item) for item in part] for part in parts]
    subtasks = [SubtaskState(lists={"mine": ListHandle(redistribute, part)}) for part in packed]
    record = OperatorRecord(kind="process", subtasks=subtasks)
    return Metadata(pipeline="p", checkpoint=1, max_parallelism=128, operators={"fn": record})


def items(dealt: Any, subtask: int) -> list[int]:
    return [msgspec.msgpack.decode(item) for item in dealt[TaskId("fn", subtask)].lists["mine"]]


def test_split_operator_state_is_dealt_out_and_kept_where_it_was_if_nothing_changed():
    metadata = with_lists("split", [1, 2, 3], [4])
    kept = assign(a_graph(2), metadata)
    assert [items(kept, n) for n in range(2)] == [[1, 2, 3], [4]]
    dealt = assign(a_graph(3), metadata)
    assert sorted(item for n in range(3) for item in items(dealt, n)) == [1, 2, 3, 4]


def test_union_operator_state_goes_to_everybody():
    dealt = assign(a_graph(3), with_lists("union", [1, 2], [3]))
    assert all(items(dealt, n) == [1, 2, 3] for n in range(3))


def test_an_operator_that_is_of_another_kind_than_its_state_is_refused():
    with pytest.raises(ConfigurationError, match="fn is a source; in checkpoint 1 it was a process"):
        check_fits(a_graph(1, fn="source"), with_lists("split", [1]), allow_non_restored=False)


def test_an_operator_without_state_may_go():
    record = OperatorRecord(kind="map", subtasks=[SubtaskState()])
    metadata = Metadata(pipeline="p", checkpoint=1, max_parallelism=128, operators={"gone": record})
    check_fits(a_graph(1), metadata, allow_non_restored=False)


def test_83_a_file_that_a_checkpoint_under_way_may_build_on_outlives_its_checkpoint(tmp_path: Path):
    """Two under way at once, one retained: the second one's base is dropped before it is complete."""
    rocks = Incremental(tmp_path)
    retained = Retained(rocks.storage, most=1, generation=0)
    retained.shared = rocks.registry

    def complete(number: int, handle: KeyedHandle, under_way: list[int]) -> None:
        operators = {"sum": OperatorRecord(kind="process", subtasks=[SubtaskState(keyed=handle)])}
        retained.write(Metadata(pipeline="p", checkpoint=number, max_parallelism=128, operators=operators))
        retained.keep(number, under_way)

    rocks.file("1")
    fourth, fifth = snapshot(rocks.table, rocks.storage, 4), snapshot(rocks.table, rocks.storage, 5)
    complete(4, fourth, [5])
    rocks.table.confirm(4)
    sixth = snapshot(rocks.table, rocks.storage, 6)
    complete(5, fifth, [6])
    complete(6, sixth, [])
    restored = rocks.backend.open(TASK, ALL, [sixth], rocks.storage)
    assert len(list(restored.scan(b""))) == 51
    assert rocks.on_disk() == {ref.path for ref in sixth.files if ref.shared}
    restored.close()
    rocks.table.close()


def test_what_a_newer_run_has_written_is_not_cleaned_up(tmp_path: Path):
    """It may start while this one does; only its START's position in the names tells."""
    storage = RocksDBBackend(tmp_path).storage
    assert storage is not None
    for writer in (3, 5, 9):
        storage.write(f"shared/{writer}-file", [b"x"], shared=True)
        storage.write_metadata(
            Metadata(pipeline="p", checkpoint=1, max_parallelism=128, operators={}), folder_of(1, writer)
        )
    kept = {path for path in storage.shared_files() if not path.endswith("3-file")}
    Retained(storage, most=1, generation=5).restored(Reference(folder=None, sha256=""), up_to=1, clean=True)
    assert set(storage.shared_files()) == kept
    assert storage.checkpoints() == [folder_of(1, 5), folder_of(1, 9)]


def test_a_checkpoint_that_was_left_by_going_back_keeps_its_files_as_long_as_its_folder(tmp_path: Path):
    storage = CheckpointStorage(tmp_path)

    def metadata(number: int, *files: Any) -> Metadata:
        state = SubtaskState(keyed=KeyedHandle(first=0, end=128, form="rocksdb", files=files))
        operators = {"sum": OperatorRecord(kind="process", subtasks=[state])}
        return Metadata(pipeline="p", log="0a", checkpoint=number, max_parallelism=128, operators=operators)

    def run(
        generation: int, numbers: range, *files: Any, restored: Reference | None = None, clean: bool = False
    ) -> None:
        retained = Retained(storage, most=2, generation=generation)
        if restored is not None:
            at = load_metadata(str(restored.folder)).metadata.checkpoint
            retained.restored(restored, up_to=at, clean=clean)
        for number in numbers:
            references.append(retained.write(metadata(number, *files)))
            prove(references[-1], "0a", number)
            retained.keep(number)

    references: list[Reference] = []
    shared = storage.write("shared/0-file", [b"x"], shared=True)
    run(0, range(1, 3), shared)
    first, left = references
    run(3, range(3, 8), restored=first)
    assert storage.checkpoints() == [folder_of(2, 0), folder_of(6, 3), folder_of(7, 3)]
    for ref in load_metadata(str(left.folder)).metadata.files:
        assert storage.read(ref) == b"x"
    run(9, range(8, 10), restored=references[-1], clean=True)
    assert storage.checkpoints() == [folder_of(8, 9), folder_of(9, 9)]
    assert storage.shared_files() == []


def test_a_damaged_checkpoint_is_told_if_it_was_decided(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    storage = CheckpointStorage(tmp_path)
    for folder in (folder_of(1, 3), folder_of(2, 3)):
        storage.write(f"{folder}/metadata", [b"damaged"])
    storage.write(f"{folder_of(2, 3)}/decided", [b"{}"])
    Retained(storage, most=1, generation=5).restored(Reference(folder=None, sha256=""), up_to=3, clean=False)
    [told] = caplog.messages
    assert "checkpoint chk-2-3 cannot be kept" in told


def test_x_a_checkpoint_that_may_not_be_read_just_now_is_not_taken_for_damaged_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    storage = CheckpointStorage(tmp_path)
    shared = storage.write("shared/3-file", [b"x"], shared=True)
    for number in (1, 2):
        storage.write(f"{folder_of(number, 3)}/metadata", [b"expected"])
    before = storage.walk()

    opened = storage._files.open

    def refused(path: str) -> Any:
        if path.endswith("metadata"):
            raise PermissionError("The provided token has expired.")
        return opened(path)

    monkeypatch.setattr(storage._files, "open", refused)
    retained = Retained(storage, most=1, generation=5)
    with pytest.raises(StateError, match="token has expired"):
        retained.restored(Reference(folder=None, sha256=""), up_to=2, clean=True)
    monkeypatch.undo()
    assert storage.walk() == before
    assert storage.read(shared) == b"x"


def test_f_the_age_of_a_checkpoint_is_that_of_the_oldest_that_it_may_carry(monkeypatch: pytest.MonkeyPatch):
    """What was prepared for checkpoints that were given up since the last decision is carried by the next."""
    ages: list[float] = []
    now = [100.0]
    coordinator: Any = SimpleNamespace(
        policy=SimpleNamespace(monotonic=lambda: now[0]),
        view=SimpleNamespace(before=None, decided=0, completed=0),
        sinks={},
        admit=lambda *_: None,
        commit=lambda *_, age, **__: ages.append(age),
        writer=SimpleNamespace(token=SimpleNamespace(log="0123abcd")),
    )
    monkeypatch.setattr(completion, "prove", lambda *_: None)
    reference = Reference(folder=None, sha256="")
    retained: Any = SimpleNamespace(write=lambda _: reference, keep=lambda *_: None)
    completer = Completer(a_graph(1), coordinator, retained)
    completer.metadata = lambda *_: Metadata(  # type: ignore[method-assign]
        pipeline="p", checkpoint=1, max_parallelism=128, operators={}
    )
    for number, (triggered, completed) in enumerate([(130.0, 140.0), (190.0, 200.0)], 2):
        now[0] = completed
        completer.complete(Pending(Barrier(number), triggered))
    assert ages == [140.0 - 100.0, 200.0 - 130.0]


def test_keys_that_are_equal_have_one_group():
    batch = pa.RecordBatch.from_pydict({"k": [0.0, -0.0], "l": [1, 1]})
    for columns in (["k"], ["k", "l"]):
        found = keys.KeyEncoder(columns).distinct(batch)
        assert len(found.values) == len(found.encoded) == 1
        assert found.codes.to_pylist() == [0, 0]


BERLIN = ZoneInfo("Europe/Berlin")
COLUMNS = {
    "text": pa.array(["a", None, "a", "", "b", "b"]),
    "dictionary": pa.array(["a", None, "a", "", "b", "b"]).dictionary_encode(),
    "bytes": pa.array([b"a", b"", None, b"a", b"a", b"c"]),
    "text view": pa.array(["a", None, "a", "", "b", "b"], pa.string_view()),
    "bytes view": pa.array([b"a", b"", None, b"a", b"a", b"c"], pa.binary_view()),
    "number": pa.array([1, 1, None, -5, 2**63 - 1, 0]),
    "small": pa.array([1, 1, None, -5, 7, 0], pa.int8()),
    "truth": pa.array([True, None, False, True, True, None]),
    "float": pa.array([0.0, -0.0, 1.5, float("nan"), float("nan"), None]),
    "decimal": pa.array([Decimal("1.00"), Decimal("-1.00"), None, Decimal("1.00"), None, Decimal("0.01")]),
    "nothing": pa.array([None] * 6),
    "day": pa.array([date(2026, 1, 1), date(1969, 1, 1), None, date(2026, 1, 1), None, date(2026, 1, 2)]),
    "hour": pa.array(  # the last hour of summer and the first of winter look alike
        [datetime(2026, 10, 25, hour, tzinfo=UTC).astimezone(BERLIN) for hour in (0, 1, 0, 1, 2, 3)],
        pa.timestamp("us", "Europe/Berlin"),
    ),
    "naive": pa.array([datetime(2026, 1, 1, hour) for hour in (0, 1, 0, 1, 2, 3)]),  # noqa: DTZ001 - without zone
    "list": pa.array([[1], [1, 2], None, [1], [], []]),
    "struct": pa.array([{"a": 1}, {"a": 2}, None, {"a": 1}, {"a": 1}, {"a": 2}]),
}


@pytest.mark.parametrize(
    "columns", [[name] for name in COLUMNS] + [["text", "number"], ["float", "day", "text"], ["list", "text"]]
)
def test_keys_of_a_batch_are_encoded_as_one_by_one(columns: list[str]):
    """The bytes are part of every checkpoint: MessagePack of the column's value, or of the tuple of values."""
    batch = pa.RecordBatch.from_pydict(COLUMNS)
    found = keys.KeyEncoder(columns).distinct(batch)
    values = [[0.0 if v == 0 and isinstance(v, float) else v for v in COLUMNS[name].to_pylist()] for name in columns]
    rows = values[0] if len(values) == 1 else list(zip(*values, strict=True))
    assert [found.encoded[code] for code in found.codes.to_pylist()] == [msgspec.msgpack.encode(row) for row in rows]
    assert [repr(found.values[code]).replace("-0.0", "0.0") for code in found.codes.to_pylist()] == [*map(repr, rows)]
    assert len(set(found.encoded)) == len(found.encoded) == len(found.values)


def test_a_batch_is_split_by_its_keys_groups_and_keeps_its_order():
    rows = [{"n": n, "k": f"k{n * 7 % 50}"} for n in range(500)]
    batch = pa.RecordBatch.from_pylist(rows)
    parts = by_key(keys.KeyEncoder(["k"]), 128)(batch, 3)
    for owner, part in parts:
        numbers = part.column("n").to_pylist()
        assert numbers == sorted(numbers)
        for key in part.column("k").to_pylist():
            assert keys.subtask_of(keys.group_of(keys.encode_key(key), 128), 3, 128) == owner
    assert sorted(n for _, part in parts for n in part.column("n").to_pylist()) == list(range(500))


@pytest.mark.parametrize("at", [float("nan"), "soon", None])
def test_a_timer_needs_a_time(at: Any):
    """Nothing is earlier or later than NaN: it would keep all timers behind it from firing."""
    scope = KeyScope(MemoryBackend().open(TASK, ALL, [], None), ALL, 128, lambda: 0.0)
    scope.enter("k", keys.encode_key("k"))
    with pytest.raises(ConfigurationError, match="a timer's time must be a number"):
        scope.set_timer(at)
    assert scope.next_timer() is None
