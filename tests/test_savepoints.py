"""Savepoints of Spark queries: consistent, whole or not at all, and never a second place at which a query can run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import uuid
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from onceward.cli.main import app, main
from onceward.connectors.spark.formats.writers import StreamWriter
from onceward.connectors.spark.savepoints import creation
from onceward.connectors.spark.savepoints.creation import create_savepoint
from onceward.connectors.spark.savepoints.manifest import Manifest, Savepoint, delete_savepoint, savepoints
from onceward.connectors.spark.savepoints.restore import plan_restore, restore_savepoint
from onceward.connectors.spark.session.options import FormatOptions
from onceward.connectors.spark.write.handler import EpochHandler
from onceward.core.contract.pipeline_settings import FOREACH_BATCH
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import (
    ConfigurationError,
    EpochConflictError,
    FencedError,
    NewerFormatError,
    OncewardError,
    StateDamagedError,
)
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.kit.sealed import seal
from onceward.core.log import DirectoryStore, LogWriter, open_store, read
from onceward.core.operations.log_locations import open_log

from .core_fakes import policy
from .sink_kit import TargetSink, target_called
from .spark_kit import Frame, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class DiedError(BaseException):
    """The process ends here."""


class Query:
    """A streaming query as Spark runs it, at one checkpoint folder; batch n brings the row n."""

    def __init__(self, folder: Path, key: str, store: str | None = None) -> None:
        self.folder, self.key, self.store = folder, key, store

    def start(self, **options: Any) -> EpochHandler:
        identity = self.folder / "metadata"
        if not identity.exists():  # for Spark this is a new query
            self.folder.mkdir(parents=True, exist_ok=True)
            identity.write_text(json.dumps({"id": str(uuid.uuid4())}))
        session: Any = Session(SimpleNamespace(root=self.folder), query=json.loads(identity.read_text())["id"])
        settings: Any = {"pipeline": "orders", "store": self.store, **options}
        return EpochHandler(
            spark=session,
            sinks=[TargetSink(self.key)],
            settings=FOREACH_BATCH.filled(settings),
            policy=policy(),
            cheap=False,
            row_size=None,
            on_complete=None,
        )

    def run(self, batches: int, **options: Any) -> None:
        """Go on for some batches; then the driver ends."""
        handler, after = self.start(**options), self.newest("commits") + 1
        for batch in range(after, after + batches):
            self.plan(batch)
            handler(Frame([batch]), batch)  # type: ignore[arg-type]
            self.put("commits", batch, "v1\n{}")

    def plan(self, batch: int) -> None:
        if not (self.folder / "offsets" / str(batch)).exists():
            self.put("offsets", batch, f'v1\n{{}}\n{{"t":{{"0":{batch + 1}}}}}\n')

    def put(self, folder: str, batch: int, text: str) -> None:
        (self.folder / folder).mkdir(exist_ok=True)
        (self.folder / folder / str(batch)).write_text(text)
        (self.folder / folder / f".{batch}.crc").write_text("sum")

    def newest(self, folder: str) -> int:
        return max((int(path.name) for path in (self.folder / folder).glob("[0-9]*")), default=-1)

    def can_start(self) -> bool:
        """In a copy of its folder, and with a target that knows nothing."""
        scratch = self.folder.with_name(f"scratch-{uuid.uuid4().hex}")
        if self.folder.exists():
            shutil.copytree(self.folder, scratch)
        twin = Query(scratch, uuid.uuid4().hex, self.store)
        try:
            twin.run(1)
            return twin.newest("commits") > 0  # else it has begun anew, as in any empty folder
        except OncewardError:
            return False
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


class Case:
    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, str(folder)
        self.old, self.new = self.query("old"), self.query("new")
        self.place = str(folder / "save")

    def query(self, name: str, store: str | None = None) -> Query:
        return Query(self.folder / name, self.key, store)

    def save(
        self, query: Query | None = None, *, retire: bool = False, quiet: float = 0.0, place: str = ""
    ) -> Manifest:
        query = query or self.old
        name = "orders" if query.store else None
        return create_savepoint(
            str(query.folder),
            place or self.place,
            store=query.store,
            pipeline=name,
            retire=retire,
            quiet=quiet,
            policy=policy(),
        )

    def restore(self, query: Query | None = None, why: str | None = None, place: str = "") -> None:
        query = query or self.new
        plan = plan_restore(place or self.place, str(query.folder), store=query.store, rewind=why)
        restore_savepoint(plan, policy=policy())

    @property
    def shown(self) -> Counter[int]:
        return target_called(self.key).counts("n")


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes die here, machines do not: hundreds of syncs would only take time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def once(rows: int) -> Counter[int]:
    return Counter(range(rows))


def test_a_query_goes_on_where_its_newest_savepoint_was_restored_and_nowhere_else(case: Case) -> None:
    case.old.run(3)
    made = case.save()
    assert (made.pipeline, made.epoch, made.sinks, made.input) == ("orders", 2, ("target",), ['{"t":{"0":3}}'])
    case.restore()
    with pytest.raises(
        EpochConflictError, match=f"has ended here: a savepoint has moved the pipeline to {case.folder}/new"
    ):
        case.old.run(1)
    with pytest.raises(EpochConflictError, match="has ended here"):
        case.old.run(1, rewind="all the same")
    case.new.run(2)
    assert case.shown == once(5)
    assert Savepoint.load(case.place).restored_to == str(case.new.folder)


def test_a_log_in_a_store_of_its_own_fences_the_old_checkpoint_and_an_idle_driver_too(case: Case) -> None:
    store = str(case.folder / "log")
    old, new = case.query("old", store), case.query("new", store)
    old.run(2)
    idle = old.start()
    old.plan(2)
    idle(Frame([2]), 2)  # type: ignore[arg-type]
    old.put("commits", 2, "v1\n{}")
    case.save(old)
    case.restore(new)
    old.plan(3)
    with pytest.raises(FencedError):
        idle(Frame([3]), 3)  # type: ignore[arg-type]
    with pytest.raises(EpochConflictError, match=f"has moved the query from {old.folder} to {new.folder}"):
        old.run(1)
    format_query = FormatOptions.parse({"checkpointLocation": str(old.folder), "store": store, "pipeline": "orders"})
    with pytest.raises(EpochConflictError, match="start it with that checkpoint"):
        pickle.dumps(StreamWriter(TargetSink(old.key), format_query))
    new.run(2)
    assert case.shown == once(5)


def test_restoring_again_ends_the_checkpoint_that_the_query_has_left_last(case: Case) -> None:
    store = str(case.folder / "log")
    first, second, third = (case.query(name, store) for name in ("first", "second", "third"))
    first.run(2)
    case.save(first)
    case.restore(second)
    case.restore(third)  # nothing was written in between
    for left, place in ((first, second), (second, third)):
        with pytest.raises(EpochConflictError, match=f"has moved the query from {left.folder} to {place.folder}"):
            left.run(1)
    third.run(1)
    shutil.rmtree(first.folder)
    case.save(third, place=str(case.folder / "again"))
    case.restore(first, place=str(case.folder / "again"))
    first.run(1)
    with pytest.raises(EpochConflictError, match=f"to {first.folder}"):
        third.run(1)
    assert case.shown == once(4)


def test_a_restore_that_the_query_was_quicker_than_leaves_the_old_checkpoint_usable(case: Case) -> None:
    old, new = case.query("old", str(case.folder / "log")), case.query("new", str(case.folder / "log"))
    old.run(2)
    case.save(old)
    plan = plan_restore(case.place, str(new.folder), store=new.store)
    old.run(1)
    with pytest.raises(EpochConflictError, match=r"the query was started at folder .* meanwhile"):
        restore_savepoint(plan, policy=policy())
    old.run(1)
    assert case.shown == once(4)
    with pytest.raises(EpochConflictError, match="has decided epoch 3 since"):
        case.restore(new)


def test_restoring_marks_no_folder_that_now_holds_another_query_and_warns(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    store = str(case.folder / "log")
    old, new = case.query("old", store), case.query("new", store)
    old.run(2)
    case.save(old)
    (old.folder / "metadata").write_text(json.dumps({"id": "another query"}))
    case.restore(new)
    assert f"cannot mark the old checkpoint {old.folder}" in caplog.text
    assert not (old.folder / "onceward").exists()
    new.run(1)
    assert case.shown == once(3)


def test_the_query_goes_on_at_its_old_place_after_a_savepoint(case: Case) -> None:
    case.old.run(3)
    case.save()
    case.old.run(2)
    assert case.shown == once(5)


def test_a_savepoint_is_refused_when_the_sinks_have_gone_on_and_restored_for_a_reason(case: Case) -> None:
    case.old.run(3)
    case.save()
    case.old.run(2)
    with pytest.raises(EpochConflictError, match=r"is of epoch 2, and the pipeline has decided epoch 4 since.*rewind"):
        case.restore()
    assert not case.new.folder.exists()
    case.restore(why="release 2 was wrong")
    assert not case.old.can_start()
    case.new.run(3)
    assert case.shown == once(6) + Counter([3, 4])
    view = open_log(str(case.new.folder)).view
    assert view.rewind is not None
    assert (view.rewind.why, view.rewind.epoch) == ("release 2 was wrong", 3)
    third = case.query("third")
    with pytest.raises(EpochConflictError, match="give another reason"):
        case.restore(third, "release 2 was wrong")
    assert case.new.can_start()
    case.restore(third, "release 3 was wrong too")
    assert not case.new.can_start()
    third.run(1)


def test_a_restore_is_refused_a_rewind_without_a_reason(case: Case) -> None:
    case.old.run(1)
    case.save()
    with pytest.raises(ConfigurationError, match="rewind is empty"):
        case.restore(why=" ")


def test_a_rewind_in_the_programs_own_settings_does_not_bring_an_old_place_back(case: Case) -> None:
    case.old.run(2, rewind="long ago")
    case.save()
    case.restore()
    with pytest.raises(EpochConflictError, match="has ended here"):
        case.old.run(1, rewind="long ago")
    case.new.run(1, rewind="long ago")
    assert case.shown == once(3)


def test_a_retired_query_starts_only_where_it_is_restored_also_without_its_old_folder(case: Case) -> None:
    case.old.run(3)
    case.save(retire=True)
    with pytest.raises(EpochConflictError, match="if only a savepoint is there, restore that one first"):
        case.old.run(1)
    shutil.rmtree(case.old.folder)
    case.restore()
    case.new.run(2)
    assert case.shown == once(5)
    third = case.query("third")
    with pytest.raises(EpochConflictError, match="has decided epoch 4 since"):
        case.restore(third)
    shutil.rmtree(case.new.folder)
    with pytest.raises(EpochConflictError, match=r"cannot be found.*unknown"):
        case.restore(third)
    with pytest.raises(EpochConflictError, match=r"cannot be found.*unknown"):
        case.restore(case.new)


def test_of_two_restores_of_a_retired_savepoint_at_once_one_wins(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.old.run(3)
    case.save(retire=True)
    saved, sync = Savepoint.load(case.place), os.fsync

    def meanwhile(_handle: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        saved.claim("second")

    monkeypatch.setattr(os, "fsync", meanwhile)
    with pytest.raises(EpochConflictError, match="is being restored to second"):
        saved.claim("first")
    saved.claim("second")


def test_a_retired_query_may_come_back_to_the_path_where_it_was(case: Case) -> None:
    case.old.run(3)
    case.save(retire=True)
    shutil.rmtree(case.old.folder)
    case.restore(case.old)
    case.old.run(1)
    assert case.shown == once(4)


def test_without_the_log_nobody_knows_what_was_written_since(case: Case) -> None:
    case.old.run(3)
    case.save()
    log = open_log(str(case.old.folder)).view.log
    shutil.rmtree(case.old.folder)
    with pytest.raises(EpochConflictError, match=r"cannot be found.*unknown.*rewind"):
        case.restore()
    case.restore(why="the disk was lost")
    case.new.run(1)
    assert case.shown == once(4)
    assert open_log(str(case.new.folder)).view.log != log


def test_a_log_in_a_database_stays_where_it_is(case: Case) -> None:
    store = f"sqlite:///{case.folder}/log.db"
    old, new, third = (case.query(name, store) for name in ("old", "new", "third"))
    old.run(3)
    case.save(old)
    case.restore(new)
    new.run(1)
    with pytest.raises(EpochConflictError, match="has decided epoch 3 since"):
        case.restore(third)
    case.restore(third, "once more")
    third.run(1)
    assert case.shown == once(4) + Counter([3])
    assert open_log(store, "orders").view.moved == ""


def test_a_log_moves_from_the_checkpoint_to_a_database(case: Case) -> None:
    case.old.run(3)
    case.save()
    new = case.query("new", f"sqlite:///{case.folder}/log.db")
    case.restore(new)
    assert not case.old.can_start()
    new.run(2)
    assert case.shown == once(5)


def test_what_was_skipped_is_still_on_record_after_a_move(case: Case) -> None:
    case.old.run(1)
    store = open_store(str(case.old.folder / "onceward"))
    writer = LogWriter(store, "orders", policy())
    writer.start()
    writer.resolve(0, "gone", action="skip", who="me", why="lost")
    writer._keep_records()
    case.save()
    case.restore()
    assert (case.new.folder / "onceward").is_dir()
    assert [key for key in DirectoryStore(case.new.folder / "onceward").list_keys() if key.startswith("R")]


# What is refused


def test_a_query_that_runs_is_noticed_before_it_is_fenced(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.old.run(2)
    driver = case.old.start()
    case.old.plan(2)
    driver(Frame([2]), 2)  # type: ignore[arg-type]
    case.old.put("commits", 2, "v1\n{}")
    monkeypatch.setattr(creation.time, "sleep", lambda _: case.old.plan(3))
    with pytest.raises(EpochConflictError, match=r"is running: it has just written\. Stop it \(query\.stop\(\)"):
        case.save(quiet=2.0)
    driver(Frame([3]), 3)  # type: ignore[arg-type]
    assert not Path(case.place).exists()


def test_a_query_that_was_too_idle_to_be_noticed_is_fenced(case: Case) -> None:
    case.old.run(2)
    driver = case.old.start()
    case.old.plan(2)
    driver(Frame([2]), 2)  # type: ignore[arg-type]
    case.old.put("commits", 2, "v1\n{}")
    case.save()
    case.old.plan(3)
    with pytest.raises(FencedError):
        driver(Frame([3]), 3)  # type: ignore[arg-type]
    assert case.shown == once(3)


def test_a_query_that_is_started_while_it_is_copied_leaves_no_savepoint(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.old.run(2)
    entries = creation.entries_of

    def started(*arguments: Any) -> Any:
        yield from entries(*arguments)
        LogWriter(arguments[0], "orders", policy()).start()

    monkeypatch.setattr(creation, "entries_of", started)
    with pytest.raises(FencedError, match="was started while"):
        case.save()
    monkeypatch.setattr(creation, "entries_of", entries)
    with pytest.raises(ConfigurationError, match="only a part of a savepoint"):
        case.restore()
    case.save()
    case.restore()
    case.new.run(1)
    assert case.shown == once(3)


def test_a_checkpoint_that_changes_while_it_is_copied_leaves_no_savepoint(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.old.run(2)
    write = CheckpointStorage.write

    def planned(self: CheckpointStorage, path: str, *arguments: Any, **options: Any) -> Any:
        if path.startswith("checkpoint/"):
            case.old.plan(2)
        return write(self, path, *arguments, **options)

    monkeypatch.setattr(CheckpointStorage, "write", planned)
    with pytest.raises(EpochConflictError, match="changed while it was copied"):
        case.save()
    assert [one.kind for one in savepoints(case.place)] == ["incomplete"]


def test_a_batch_that_was_planned_and_not_run_is_run_where_the_savepoint_is_restored(case: Case) -> None:
    case.old.run(2)
    case.old.plan(2)
    case.save()
    case.restore()
    case.new.run(2)
    assert case.shown == once(4)


@pytest.mark.parametrize("step", [Step.DECIDE_AFTER, Step.COMPLETE_BEFORE])
def test_an_epoch_that_is_decided_and_not_committed_is_no_end(case: Case, step: Step) -> None:
    case.old.run(2)

    def die(at: Step) -> None:
        if at is step:
            raise DiedError

    with hooked(die), pytest.raises(DiedError):
        case.old.run(1)
    with pytest.raises(EpochConflictError, match="epoch 2 is decided and not committed everywhere"):
        case.save()


def test_an_epoch_that_spark_has_not_logged_is_no_end(case: Case) -> None:
    case.old.run(2)
    (case.old.folder / "commits" / "1").unlink()
    with pytest.raises(EpochConflictError, match="Spark has logged batch 0, and epoch 1 is completed"):
        case.save()
    case.old.run(1)
    case.save()


def test_a_log_of_another_checkpoint_is_refused(case: Case) -> None:
    case.old.run(2)
    other = Case(case.folder / "other")
    other.old.run(2)
    shutil.rmtree(case.old.folder / "onceward")
    shutil.copytree(other.old.folder / "onceward", case.old.folder / "onceward")
    with pytest.raises(ConfigurationError, match="does not belong to the checkpoint"):
        case.save()
    other.old.run(3)
    shutil.rmtree(case.old.folder / "onceward")
    shutil.copytree(other.old.folder / "onceward", case.old.folder / "onceward")
    with pytest.raises(ConfigurationError, match="is not the checkpoint of epoch 4"):
        case.save()


def test_a_query_without_an_epoch_has_nothing_to_save(case: Case) -> None:
    case.old.run(0)
    LogWriter(DirectoryStore(case.old.folder / "onceward"), "orders", policy()).start()
    with pytest.raises(ConfigurationError, match="nothing to save yet"):
        case.save()


def test_a_folder_in_use_is_left_alone(case: Case) -> None:
    case.old.run(2)
    with pytest.raises(ConfigurationError, match="cannot be inside its own checkpoint"):
        case.save(place=str(case.old.folder / "save"))
    Path(case.place).mkdir()
    (Path(case.place) / "mine").write_text("mine")
    with pytest.raises(ConfigurationError, match="holds other files"):
        case.save()
    with pytest.raises(ConfigurationError, match="is not a savepoint"):
        delete_savepoint(case.place)
    with pytest.raises(ConfigurationError, match="is not a savepoint"):
        delete_savepoint(str(case.old.folder))
    case.save(place=str(case.folder / "other"))
    with pytest.raises(ConfigurationError, match="already holds a savepoint"):
        case.save(place=str(case.folder / "other"))
    case.new.folder.mkdir()
    (case.new.folder / "mine").write_text("mine")
    with pytest.raises(ConfigurationError, match="is not empty: it holds mine"):
        case.restore(place=str(case.folder / "other"))
    assert case.old.can_start()


@pytest.mark.parametrize("file", ["checkpoint/offsets/1", "checkpoint/metadata", "log/*", "manifest"])
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_savepoint_is_refused_before_anything_is_written(case: Case, file: str, damage: str) -> None:
    case.old.run(1)
    case.old.plan(1)
    case.save()
    path = next(Path(case.place).glob(file))
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises((StateDamagedError, ConfigurationError), match=r"damaged|cannot be read|only a part"):
        case.restore()
    assert not case.new.folder.exists()
    assert case.old.can_start()


@pytest.mark.parametrize(
    "path",
    [
        "checkpoint/../../evil",
        "/evil",
        "checkpoint//evil",
        "checkpoint/./x",
        "..",
        "",
        "nul\0",
        "checkpoint/../offsets/0",
    ],
)
@pytest.mark.parametrize("kind", ["files", "entries"])
def test_a_savepoint_that_names_files_elsewhere_is_refused_and_nothing_is_written(
    case: Case, kind: str, path: str
) -> None:
    case.old.run(1)
    case.save()
    (case.folder / "evil").write_text("x")
    manifest = Path(case.place, "manifest")
    body = json.loads(manifest.read_bytes().partition(b"\n")[2])
    body[kind][-1]["path"] = path
    manifest.write_bytes(seal("onceward-savepoint", json.dumps(body).encode()))
    before = sorted(case.folder.rglob("*"))
    with pytest.raises(StateDamagedError, match="is no file below a folder"):
        case.restore()
    (found,) = savepoints(case.place)
    assert "is no file below a folder" in found.problem
    assert sorted(case.folder.rglob("*")) == before


def test_a_savepoint_of_a_newer_version_is_listed_and_refused_with_what_to_do(case: Case) -> None:
    case.old.run(1)
    case.save()
    manifest = Path(case.place, "manifest")
    header, body = manifest.read_bytes().split(b"\n", 1)
    later = header.split()[0].replace(b"/1", b"/2")
    digest = hashlib.sha256(later + b"\n" + body.removesuffix(b"\n")).hexdigest().encode()
    manifest.write_bytes(later + b" " + digest + b"\n" + body)
    with pytest.raises(NewerFormatError, match=r"has format 2, .*: upgrade onceward"):
        case.restore()
    assert not case.new.folder.exists()
    (found,) = savepoints(case.place)
    assert (found.kind, "upgrade onceward" in found.problem) == ("newer", True)


# Interruptions


@contextmanager
def dying(after: int) -> Iterator[list[str]]:
    """Die right before the n-th durable call, or right after it where the number is odd; what was called."""
    called: list[str] = []
    left = after

    def passing(original: Callable[..., Any], self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal left
        called.append(f"{original.__qualname__} {arguments[0]}")
        left -= 1
        if left == 0:
            raise DiedError
        answer = original(self, *arguments, **options)
        left -= 1
        if left == 0:
            raise DiedError
        return answer

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (CheckpointStorage, "write"),
            (CheckpointStorage, "put_once"),
            (CheckpointStorage, "delete_folder"),
            (DirectoryStore, "put_if_absent"),
        ):
            original = getattr(owner, name)
            patch.setattr(owner, name, lambda self, *a, _o=original, **o: passing(_o, self, *a, **o))
        yield called


def interrupted_everywhere(begin: Callable[[], Case], act: Callable[[Case], object]) -> Iterator[Case]:
    """A case for each durable call of an action, in which the process has died there."""
    for point in range(1, 500):
        case = begin()
        with dying(point):
            try:
                act(case)
            except DiedError:
                yield case
            else:
                assert point > 10  # it came to its end
                return


def begun(folder: Path) -> Case:
    case = Case(folder / uuid.uuid4().hex)
    case.old.run(1)
    return case


@pytest.mark.slow
@pytest.mark.parametrize("retire", [False, True])
def test_a_copying_that_dies_anywhere_leaves_the_query_or_a_savepoint(tmp_path: Path, *, retire: bool) -> None:
    for case in interrupted_everywhere(lambda: begun(tmp_path), lambda case: case.save(retire=retire)):
        complete = (Path(case.place) / "manifest").exists()
        assert complete or retire or case.old.can_start()
        if not complete:
            with pytest.raises(ConfigurationError, match=r"is not a savepoint|only a part"):
                case.restore()
            case.save(retire=retire)
        assert not (retire and case.old.can_start())
        case.restore()
        assert not case.old.can_start()
        case.new.run(1)
        assert case.shown == once(2)


def saved(folder: Path, *, gone_on: bool = False, retire: bool = False, lost: bool = False) -> Case:
    case = begun(folder)
    case.save(retire=retire)
    if gone_on:
        case.old.run(2)
    if lost:
        shutil.rmtree(case.old.folder)
    return case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why", "expected"),
    [
        ({}, None, once(2)),
        ({"retire": True}, None, once(2)),
        ({"gone_on": True}, "wrong", once(3) + Counter([1])),
        ({"lost": True}, "lost", once(2)),
        ({"retire": True, "lost": True}, None, once(2)),
    ],
    ids=["newest", "retired", "rewound", "lost", "moved-machine"],
)
def test_a_restore_that_dies_anywhere_leaves_one_place_to_start_at_most_and_can_be_repeated(
    tmp_path: Path, how: dict[str, bool], why: str | None, expected: Counter[int]
) -> None:
    act = partial(Case.restore, why=why)
    for case in interrupted_everywhere(lambda: saved(tmp_path, **how), act):
        starts = [name for name in ("old", "new") if case.query(name).can_start()]
        assert len(starts) <= 1
        case.restore(why=why)
        assert [name for name in ("old", "new") if case.query(name).can_start()] == ["new"]
        case.new.run(1)
        assert case.shown == expected


def test_a_query_that_was_started_after_an_interrupted_restore_has_gone_on(tmp_path: Path) -> None:
    for case in interrupted_everywhere(lambda: saved(tmp_path), Case.restore):
        if case.old.can_start():
            case.old.run(1)
            with pytest.raises(EpochConflictError, match="has decided epoch 1 since"):
                case.restore()
            case.restore(case.query("third"), "the restore was interrupted")
            case.query("third").run(1)
            assert case.shown == once(2) + Counter([1])


# The command line


def cli(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["savepoint", *arguments])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.slow
def test_the_commands_show_what_they_would_do_and_do_it_when_told(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "QUIET_SECONDS", 0.0)
    case.old.run(3)
    old, new = str(case.old.folder), str(case.new.folder)
    would = f"would copy {old} with epoch 2 of orders to {case.place}"
    assert would in cli("create", case.place, "--checkpoint", old)
    assert would in cli(
        "create", f"{case.folder}/x/../{Path(case.place).name}", "--checkpoint", f"{old}/../{case.old.folder.name}"
    )
    assert not Path(case.place).exists()
    assert "savepoint of epoch 2 of orders" in cli("create", case.place, "--checkpoint", old, "--yes")
    (case.folder / ".DS_Store").touch()
    [one] = json.loads(cli("list", str(case.folder), "--json"))
    assert (one["place"], one["kind"], one["pipeline"], one["epoch"]) == (case.place, "spark", "orders", 2)
    said = cli("restore", case.place, "--checkpoint", new)
    assert f"would restore epoch 2 of pipeline orders to {new}; the query can no longer be started from {old}" in said
    assert not case.new.folder.exists()
    again = ["restore", case.place, "--checkpoint", new, "--yes", "--pipeline"]
    refused = CliRunner().invoke(app, ["savepoint", *again, "orders-eu"])
    assert isinstance(refused.exception, ConfigurationError)
    assert "is a savepoint of pipeline 'orders', not of 'orders-eu'" in str(refused.exception)
    assert f"start the query with checkpoint {new}" in cli(*again, "orders")
    assert f"restored to {new}" in cli("list", case.place)
    case.new.run(1)
    assert "would delete" in cli("delete", case.place)
    assert "deleted" in cli("delete", case.place, "--yes")
    assert not Path(case.place).exists()
    assert case.shown == once(4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "{save}"], "give a Spark query's --checkpoint, or the --store"),
        (["create", "{save}", "--checkpoint", "{old}", "--stop"], "--stop and --drain are for the embedded engine"),
        (["create", "{save}", "--checkpoint", "{old}", "--store", "x", "--retire"], "--retire is for a log in"),
        (["create", "{save}", "--checkpoint", "{missing}"], "no such folder"),
        (["create", "{save}", "--store", "{old}", "--yes"], "is not one of the embedded engine"),
        (["list", "{missing}"], "there is no such folder"),
        (["list", "{file}"], "is a file, not a folder"),
        (["create", "{file}", "--checkpoint", "{old}"], "is a file, not a folder"),
        (["restore", "{file}", "--checkpoint", "{new}"], "is not a savepoint"),
        (["restore", "{old}", "--checkpoint", "{new}"], "is not a savepoint"),
        (["restore", "{old}", "--checkpoint", "{new}", "--rewind", " "], "--rewind is empty"),
        (["delete", "", "--yes"], "argument 3 is empty"),
        (["create", "{save}", "--checkpoint="], "--checkpoint is empty"),
        (["delete", "{old}", "--yes"], "is not a savepoint"),
    ],
)
def test_wrong_arguments_are_refused_in_words(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    case.old.run(1)
    places = {"save": case.place, "old": case.old.folder, "new": case.new.folder, "missing": case.folder / "missing"}
    places["file"] = case.folder / "notes.txt"
    places["file"].write_text("a file")
    monkeypatch.setattr("sys.argv", ["onceward", "savepoint", *(one.format(**places) for one in arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert case.old.can_start()


def test_deleting_says_when_nothing_else_is_left_and_cleans_up_after_interruptions(tmp_path: Path) -> None:
    case = saved(tmp_path, retire=True)
    assert "all that is left of pipeline orders" in cli("delete", case.place)
    (Path(case.place) / "manifest").unlink()
    assert "incomplete: pipeline orders" in cli("list", case.place)
    delete_savepoint(case.place)
    assert not Path(case.place).exists()


def test_savepoints_are_kept_where_fsspec_can_write(case: Case) -> None:
    place = f"memory://saves/{uuid.uuid4().hex}"
    case.old.run(2)
    case.save(place=place)
    assert [(one.kind, one.epoch) for one in savepoints(place)] == [("spark", 1)]
    case.restore(place=place)
    case.new.run(1)
    assert case.shown == once(3)
    storage = CheckpointStorage(place)
    assert {"manifest", "begun", "restored", "checkpoint/metadata"} <= storage.walk().keys()
    before = storage.walk()
    assert storage.walk() == before
    storage.write("another", [b"file"])
    assert storage.walk() != before
    with pytest.raises(ConfigurationError, match="also holds another, which is no part of the savepoint"):
        delete_savepoint(place)
    storage.delete(["another"])
    assert storage.walk() == before
    delete_savepoint(place)
    assert CheckpointStorage(place).walk() == {}


def test_a_moved_log_admits_no_operator(case: Case) -> None:
    case.old.run(2)
    case.save()
    case.restore()
    store = open_store(str(case.old.folder / "onceward"))
    tail = read(store).tail
    with pytest.raises(EpochConflictError, match="has ended here"):
        LogWriter(store, "orders", policy()).start()
    assert read(store).tail == tail
    with pytest.raises(EpochConflictError, match="make the savepoint there"):
        case.save(place=str(case.folder / "other"))


def test_a_savepoint_on_a_disk_that_cannot_be_written_to_is_restored(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case.old.run(2)
    case.save()

    def refuse(self: Savepoint, place: str) -> None:
        raise OSError(30, f"read-only file system: {self.storage.root}, {place}")

    monkeypatch.setattr(Savepoint, "mark_restored", refuse)
    case.restore()
    assert "cannot record in the savepoint that it was restored" in caplog.text
    case.new.run(1)
    assert case.shown == once(3)
    assert not case.old.can_start()
