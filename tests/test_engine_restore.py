"""What may be restored, and that a restore takes effect once. Rules C and D."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from onceward.core import CheckpointConfig, FileBackend, JobState, ListState, RestartStrategy, RocksDBBackend
from onceward.core.checkpoint import Backoff, CommitPolicy
from onceward.core.engine.reference import load_metadata
from onceward.core.engine.state import storage
from onceward.core.errors import (
    CheckpointFailedError,
    ConfigurationError,
    DataLossError,
    EpochConflictError,
    FencedError,
    OperatorError,
    StateDamagedError,
    StoreError,
)
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.kit.sealed import seal
from onceward.core.log import Decide, MemoryStore, audit_records
from onceward.core.log.entries import decode_entry
from onceward.sources import SequenceSource

from .engine_kit import RunningSum, Slowly, numbers, pipeline, reach, sums
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = numbers(1000, keys=5)


def totals(target: Target, source: Any, *, parallelism: int = 2, **options: Any) -> Any:
    options.setdefault("checkpointing", CheckpointConfig())
    options.setdefault("restart", RestartStrategy.none())
    p = pipeline(**options)
    p.source(source, uid="numbers").key_by("k").process(RunningSum(), uid="sum", parallelism=parallelism).sink(
        TargetSink(target)
    )
    return p


def exact(target: Target) -> None:
    assert target.counts("n") == Counter(range(1000))
    assert {row["n"]: row["sum"] for row in target.rows} == sums(ROWS)
    assert target.prepared == {}


class Killed(SystemExit):
    """The run ends here, and tidies nothing up."""


def killed_at(step: Step) -> Callable[[Step], None]:
    def hook(reached: Step) -> None:
        if reached is step:
            raise Killed

    return hook


class Rig:
    """A pipeline's target, decision log and folders, and runs of it."""

    def __init__(self, folder: Path) -> None:
        self.target, self.store, self.folder = Target(), MemoryStore(), folder
        self.save = folder / "save"

    def begun(self, batches: int, **options: Any) -> tuple[Any, Any, Slowly]:
        """A run that has read so many batches of 100."""
        source = Slowly(ROWS, batch_rows=100)
        p = self.pipeline(source, **options)
        job = p.start()
        reach(source, job, batches)
        return p, job, source

    def goes_on(self, at: int, *, options: Any = None, **command: Any) -> None:
        """A run that begins at a row, reads 100, makes a checkpoint, and is stopped."""
        source = Slowly(ROWS, batch_rows=100)
        p = self.pipeline(source, **options or {})
        job = p.start(**command)
        reach(source, job, 1)
        assert source.taken == at // 100 + 1
        job.checkpoint(timeout=10)
        p.stop()

    def pipeline(self, source: Any = None, **options: Any) -> Any:
        options.setdefault("backend", FileBackend(self.folder / "state"))
        options.setdefault("store", self.store)
        return totals(self.target, source or SequenceSource(ROWS, batch_rows=100), **options)

    def killed(self, step: Step, batches: int, make: Callable[[Any], Any]) -> None:
        """A run that dies at a step while it makes a checkpoint."""
        p, job, _ = self.begun(batches)
        self.kill(p, step, lambda: make(job))

    def kill(self, p: Any, step: Step, make: Callable[[], Any]) -> None:
        with hooked(killed_at(step)), pytest.raises(OperatorError):
            make()
        with pytest.raises(OperatorError, match="Killed"):
            p.wait(10)

    def checkpoints(self) -> list[Path]:
        return sorted(path.parent for path in (self.folder / "state").rglob("metadata"))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_savepoint_that_was_written_and_never_decided_is_not_restored(rig: Rig):
    """Rule D. It was: 300 of 1000 rows were missing, without a word."""
    rig.killed(Step.DECIDE_BEFORE, 3, lambda job: job.stop_with_savepoint(rig.save, timeout=10))
    assert (rig.save / "metadata").exists()
    with pytest.raises(EpochConflictError, match="was never decided"):
        rig.pipeline().run(restore=str(rig.save), rewind="upgrade")
    rig.pipeline().run()
    exact(rig.target)


def test_a_checkpoint_that_was_written_and_never_decided_is_not_restored(rig: Rig):
    rig.killed(Step.DECIDE_BEFORE, 3, lambda job: job.checkpoint(timeout=10))
    [folder] = rig.checkpoints()
    with pytest.raises(EpochConflictError, match="was never decided"):
        rig.pipeline().run(restore=str(folder), rewind="the newest")
    rig.pipeline().run()
    exact(rig.target)


@pytest.mark.parametrize("how", ["newest", "by its folder"])
def test_metadata_of_a_version_that_knew_fewer_fields_are_those_that_were_decided(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, how: str
):
    def without_a_field(metadata: Any) -> bytes:
        fields = msgspec.to_builtins(metadata)
        del fields["dropped"]
        return seal("onceward-checkpoint", json.dumps(fields).encode())

    with monkeypatch.context() as patch:
        patch.setattr(storage, "encode_metadata", without_a_field)
        p, job, _ = rig.begun(3)
        job.stop_with_savepoint(rig.save, timeout=10)
        p.wait(10)
    rig.pipeline().run(**({"restore": str(rig.save), "rewind": "a test"} if how != "newest" else {}))
    exact(rig.target)


@pytest.mark.parametrize("step", [Step.DECIDE_AFTER, Step.COMMIT_AFTER, Step.COMPLETE_BEFORE, Step.COMPLETE_AFTER])
def test_a_savepoint_that_was_decided_can_be_restored_wherever_the_run_died_then(rig: Rig, step: Step):
    """The proof beside its metadata is written when the decision is finished, at the latest by the next start."""
    rig.killed(step, 3, lambda job: job.stop_with_savepoint(rig.save, timeout=10))
    rig.pipeline().run()
    exact(rig.target)
    rig.pipeline().run(restore=str(rig.save), rewind="again from there")
    assert rig.target.counts("n") == Counter(range(1000)) + Counter(range(300, 1000))


def test_an_older_checkpoint_that_the_log_has_forgotten_can_be_restored(rig: Rig):
    p, job, source = rig.begun(2, checkpointing=CheckpointConfig(retained=3))
    for _ in range(4):
        job.checkpoint(timeout=10)
        reach(source, job, 1)
    p.stop()
    oldest = min(rig.checkpoints(), key=lambda path: int(path.name.split("-")[1]))
    rig.pipeline().run(restore=str(oldest), rewind="an error in the function")
    counts = rig.target.counts("n")
    assert set(counts) == set(range(1000))
    assert max(counts.values()) == 2


def test_an_intermediate_savepoint_counts_only_if_a_later_checkpoint_of_its_run_committed_its_rows(rig: Rig):
    """A later run's checkpoint may have begun before it, and a number says nothing of that."""
    p, job, source = rig.begun(5)
    job.savepoint(rig.save, timeout=10)
    p.stop()
    p, job, source = rig.begun(1)
    for _ in range(3):
        job.checkpoint(timeout=10)
    p.stop()
    assert rig.target.counts("n") == Counter(range(100))
    with pytest.raises(EpochConflictError, match="was never decided"):
        rig.pipeline().run(restore=str(rig.save), rewind="upgrade")
    del source


@pytest.mark.parametrize("step", [None, Step.DECIDE_AFTER, Step.COMPLETE_AFTER])
def test_an_intermediate_savepoint_can_be_restored_once_its_rows_are_committed(rig: Rig, step: Step | None):
    p, job, source = rig.begun(2)
    job.savepoint(rig.save, timeout=10)
    reach(source, job, 1)
    if step is None:
        job.checkpoint(timeout=10)
        p.stop()
    else:
        rig.kill(p, step, lambda: job.checkpoint(timeout=10))
    rig.pipeline().run()
    rig.pipeline().run(restore=str(rig.save), rewind="again from there")
    assert rig.target.counts("n") == Counter(range(1000)) + Counter(range(200, 1000))


def test_another_pipelines_savepoint_is_imported_only_by_its_name(rig: Rig):
    p, job, _ = rig.begun(3)
    job.stop_with_savepoint(rig.save, timeout=10)
    options = {"name": "fork", "store": MemoryStore(), "backend": FileBackend(rig.folder / "fork")}
    with pytest.raises(ConfigurationError, match=r"made by pipeline 'p'.*import_from='p'"):
        rig.pipeline(**options).run(restore=str(rig.save))
    with pytest.raises(ConfigurationError, match="made by pipeline 'p'"):
        rig.pipeline(**options).run(restore=str(rig.save), import_from="q")
    rig.target.committed.clear()
    rig.pipeline(**options).run(restore=str(rig.save), import_from="p")
    assert rig.target.counts("n") == Counter(range(300, 1000))
    del p


def test_a_savepoint_of_a_lost_decision_log_is_an_import_too(rig: Rig):
    _, job, _ = rig.begun(3)
    job.stop_with_savepoint(rig.save, timeout=10)
    store = MemoryStore()
    with pytest.raises(ConfigurationError, match=r"another decision log.*import_from='p'"):
        rig.pipeline(store=store).run(restore=str(rig.save))
    rig.pipeline(store=store).run(restore=str(rig.save), import_from="p")
    exact(rig.target)


@pytest.mark.parametrize("parallelism", [1, 2, 5])
@pytest.mark.parametrize("moved", [False, True])
def test_the_pipelines_own_newest_savepoint_needs_no_reason(rig: Rig, parallelism: int, moved: bool):
    _, job, _ = rig.begun(3)
    where = Path(job.stop_with_savepoint(rig.save, timeout=10))
    if moved:
        where = where.rename(rig.folder / "moved")
    rig.pipeline(parallelism=parallelism).run(restore=str(where))
    exact(rig.target)


def test_a_start_that_fails_says_so(rig: Rig, caplog: pytest.LogCaptureFixture):
    p, job, source = rig.begun(3)
    job.savepoint(rig.save, timeout=10)
    source.let(100)
    assert p.wait(20)
    again = rig.pipeline()
    with pytest.raises(EpochConflictError, match="Pass rewind"):
        again.start(restore=str(rig.save))
    assert "Pass rewind" in caplog.text
    with pytest.raises(Exception, match="Pass rewind"):
        again.savepoint(rig.folder / "other")


def test_a_start_that_is_tried_again_does_not_raise(rig: Rig):
    away = [True]

    class Away(MemoryStore):
        def list_keys(self) -> list[str]:
            if away:
                raise StoreError("away")
            return super().list_keys()

    p = rig.pipeline(store=Away(), restart=RestartStrategy.fixed_delay(delay=0.01, attempts=100))
    p.setup = p.setup._replace(policy=CommitPolicy(puts=Backoff(attempts=0)))  # the log itself waits for nobody
    with hooked(lambda step: away.clear() if step is Step.LOG_PUT_BEFORE else None):
        job = p.start()
        assert job.state in {JobState.RESTARTING, JobState.STARTING}
        away.clear()
        assert p.wait(60)
    exact(rig.target)


def test_a_restore_is_logged(rig: Rig, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "onceward.engine")
    _, job, _ = rig.begun(3)
    job.stop_with_savepoint(rig.save, timeout=10)
    rig.pipeline().run(restore=str(rig.save))
    assert f"pipeline p begins with checkpoint 1 in {rig.save}" in caplog.text


@pytest.mark.parametrize("how", ["restore", "restore and claim", "begin anew"])
def test_a_way_back_that_is_left_in_the_command_line_takes_effect_once(rig: Rig, how: str):
    """Rule C: supervisors repeat command lines."""
    p, job, source = rig.begun(2)
    job.savepoint(rig.save, timeout=10)
    reach(source, job, 3)
    job.checkpoint(timeout=10)
    p.stop()
    assert rig.target.counts("n") == Counter(range(500))
    command: dict[str, Any] = {"rewind": "an error in the function"}
    if how != "begin anew":
        command |= {"restore": str(rig.save), "claim": how != "restore"}
    first = 0 if how == "begin anew" else 200
    for run in range(1, 4):
        rig.goes_on(first + 100 * (run - 1), **command)
        assert rig.target.counts("n") == Counter(range(500)) + Counter(range(first, first + 100 * run)), run
    rig.pipeline().run(**command)
    assert rig.target.counts("n") == Counter(range(500)) + Counter(range(first, 1000))


def test_another_reason_goes_back_again(rig: Rig):
    p, job, source = rig.begun(2)
    job.savepoint(rig.save, timeout=10)
    source.let(100)
    assert p.wait(20)
    for why in ("once", "once", "twice"):
        rig.pipeline().run(restore=str(rig.save), rewind=why)
    assert rig.target.counts("n") == Counter(range(1000)) + Counter([*range(200, 1000)] * 2)
    del job, source


def test_a_reason_that_was_used_opens_the_way_for_no_other_checkpoint(rig: Rig):
    """The words stay in the command line, and only the folder is changed, or the command line is an older one."""
    p, job, source = rig.begun(2)
    older = rig.folder / "older"
    job.savepoint(older, timeout=10)
    reach(source, job, 3)
    job.savepoint(rig.save, timeout=10)
    source.let(100)
    assert p.wait(20)
    for why in ("once", "twice"):
        rig.pipeline().run(restore=str(rig.save), rewind=why)
    committed, entries = rig.target.counts("n"), list(rig.store.list_keys())
    for restore, why in ((str(older), "twice"), (str(rig.save), "once"), (None, "once")):
        with pytest.raises(EpochConflictError, match=r"done before.*give another reason"):
            rig.pipeline().run(restore=restore, rewind=why)
    assert rig.target.counts("n") == committed
    assert list(rig.store.list_keys()) == entries, "nobody was fenced"
    rig.pipeline().run(restore=str(older), rewind="the third time")
    assert rig.target.counts("n") == committed + Counter(range(200, 1000))


def test_a_savepoint_left_in_the_command_line_is_restored_once(rig: Rig):
    """The newest savepoint needs no reason; neither does the same command line after later checkpoints."""
    _, job, _ = rig.begun(2)
    job.stop_with_savepoint(rig.save, timeout=10)
    for run in range(2, 5):
        rig.goes_on(100 * run, restore=str(rig.save))
    rig.pipeline().run(restore=str(rig.save))
    exact(rig.target)


def test_an_import_left_in_the_command_line_is_done_once(rig: Rig):
    _, job, _ = rig.begun(2)
    job.stop_with_savepoint(rig.save, timeout=10)
    rig.target.committed.clear()
    options = {"name": "fork", "store": MemoryStore(), "backend": FileBackend(rig.folder / "fork")}
    for run in range(2, 5):
        rig.goes_on(100 * run, options=options, restore=str(rig.save), import_from="p")
    rig.pipeline(**options).run(restore=str(rig.save), import_from="p")
    assert rig.target.counts("n") == Counter(range(200, 1000))


def test_a_fresh_log_over_an_old_state_folder_begins_and_leaves_what_is_there_alone(rig: Rig):
    p, job, _ = rig.begun(2)
    job.checkpoint(timeout=10)
    p.stop()
    [old] = rig.checkpoints()
    rig.target.committed.clear()
    rig.pipeline(store=MemoryStore()).run()
    exact(rig.target)
    assert (old / "metadata").exists()


def test_the_old_run_is_fenced_while_it_makes_a_savepoint_and_proves_nothing(rig: Rig):
    p, job, source = rig.begun(3)
    rig.pipeline().run()
    with pytest.raises(FencedError):
        job.stop_with_savepoint(rig.save, timeout=10)
    with pytest.raises(FencedError):
        p.wait(10)
    with pytest.raises(EpochConflictError, match="was never decided"):
        rig.pipeline().run(restore=str(rig.save), rewind="upgrade")
    del source
    shutil.rmtree(rig.save)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_the_proof_beside_the_newest_checkpoint_is_written_again(rig: Rig, damage: str):
    p, job, _ = rig.begun(2)
    job.checkpoint(timeout=10)
    p.stop()
    [folder] = rig.checkpoints()
    proof = folder / "decided"
    whole = proof.read_bytes()
    proof.write_bytes(b"\0") if damage == "damaged" else proof.unlink()
    p, _, _ = rig.begun(1)
    assert proof.read_bytes() == whole
    p.stop()


@pytest.mark.parametrize("name", ["..", "a/b", "/etc", ""])
def test_no_name_leads_a_backend_out_of_its_folder(tmp_path: Path, name: str):
    for backend in (FileBackend(tmp_path / "state"), RocksDBBackend(tmp_path / "state")):
        with pytest.raises(ConfigurationError, match="cannot be the name of a folder"):
            backend.bind(name)


@pytest.mark.parametrize("form", ["relative", "absolute"])
def test_a_forged_checkpoint_beside_the_decided_one_deletes_no_file_elsewhere(
    rig: Rig, form: str, caplog: pytest.LogCaptureFixture
):
    p, job, _ = rig.begun(1)
    job.checkpoint(timeout=10)
    p.stop()
    [newest] = rig.checkpoints()
    mine = rig.folder / "mine"
    mine.write_text("mine")
    forged = newest.with_name("chk-0-0")
    shutil.copytree(newest, forged)
    body = json.loads((newest / "metadata").read_bytes().partition(b"\n")[2])
    path = str(mine) if form == "absolute" else os.path.relpath(mine, newest.parent)
    stored = {"name": "x.sst", "path": path, "size": 4, "sha256": "0" * 64, "shared": True}
    body["operators"]["sum"]["subtasks"][0]["keyed"]["files"] = [stored]
    data = seal("onceward-checkpoint", json.dumps({**body, "checkpoint": 0}, separators=(",", ":")).encode())
    (forged / "metadata").write_bytes(data)
    proof = {"log": body["log"], "epoch": 0, "sha256": hashlib.sha256(data).hexdigest()}
    (forged / "decided").write_text(json.dumps(proof))
    with pytest.raises(StateDamagedError, match="is no file below a folder"):
        load_metadata(str(forged))
    rig.goes_on(100)
    assert mine.read_text() == "mine"
    assert "is no file below a folder" in caplog.text


class Loses(TargetSink):
    """Its target forgets what was prepared, between the decision and the commit, so many times."""

    def __init__(self, target: Target, times: int, *, half: bool = False) -> None:
        super().__init__(target)
        self.left = [half] * times
        self.proves = not half  # with a proof, the lost half is written again

    def commit_many(self, committables: Any) -> Any:
        if self.left and committables:
            doomed = committables[: len(committables) // 2] if self.left.pop() else committables
            for committable in doomed:
                self.target.prepared.pop(committable.transaction, None)
        return super().commit_many(committables)


def losing(rig: Rig, source: Any, sink: TargetSink, **options: Any) -> Any:
    options.setdefault("restart", RestartStrategy.fixed_delay(delay=0, attempts=5))
    backend = FileBackend(rig.folder / "state")
    p = pipeline(store=rig.store, backend=backend, on_lost="replay", checkpointing=CheckpointConfig(), **options)
    p.source(source, uid="numbers").key_by("k").process(RunningSum(), uid="sum", parallelism=3).sink(
        sink, parallelism=3
    )
    return p


def test_what_is_proven_lost_is_written_again_from_the_checkpoint_before(rig: Rig):
    source, sink = Slowly(ROWS, batch_rows=100), Loses(rig.target, 0)
    p = losing(rig, source, sink)
    job = p.start()
    reach(source, job, 3)
    job.checkpoint(timeout=10)
    reach(source, job, 2)
    sink.left = [False, False]
    with pytest.raises(Exception, match="proven not committed"):
        job.checkpoint(timeout=10)
    source.let(100)
    assert p.wait(30)
    assert job.restarts == 2
    exact(rig.target)
    assert [type(record).__name__ for record in audit_records(rig.store)] == ["Void", "Void"]


@pytest.mark.parametrize("step", [Step.DECIDE_AFTER, Step.COMMIT_BEFORE])
def test_a_loss_that_the_next_start_finds_is_written_again_too(rig: Rig, step: Step):
    source = Slowly(ROWS, batch_rows=100)
    p = losing(rig, source, TargetSink(rig.target), restart=RestartStrategy.none())
    job = p.start()
    reach(source, job, 3)
    job.checkpoint(timeout=10)
    reach(source, job, 2)
    rig.kill(p, step, lambda: job.checkpoint(timeout=10))
    rig.target.prepared.clear()
    losing(rig, SequenceSource(ROWS, batch_rows=100), TargetSink(rig.target)).run()
    exact(rig.target)


def test_the_start_after_a_replay_that_was_interrupted_goes_on_with_it(rig: Rig):
    source, sink = Slowly(ROWS, batch_rows=100), Loses(rig.target, 0)
    p = losing(rig, source, sink, restart=RestartStrategy.none())
    job = p.start()
    reach(source, job, 3)
    job.checkpoint(timeout=10)
    reach(source, job, 2)
    sink.left = [False]
    with pytest.raises(CheckpointFailedError, match="proven not committed"):
        job.checkpoint(timeout=10)
    with pytest.raises(CheckpointFailedError):
        p.wait(10)
    with hooked(killed_at(Step.DECIDE_BEFORE)), pytest.raises(Killed):
        losing(rig, SequenceSource(ROWS), TargetSink(rig.target), restart=RestartStrategy.none()).run()
    losing(rig, SequenceSource(ROWS, batch_rows=100), TargetSink(rig.target)).run()
    exact(rig.target)


def test_a_loss_of_which_a_part_was_committed_is_not_replayed(rig: Rig):
    source, sink = Slowly(ROWS, batch_rows=100), Loses(rig.target, 1, half=True)
    sink.proof = False
    p = losing(rig, source, sink)
    job = p.start()
    reach(source, job, 3)
    with pytest.raises(DataLossError, match="was refused: the decision holds no hash of all that target was handed"):
        job.checkpoint(timeout=10)
    with pytest.raises(DataLossError):
        p.wait(10)


def test_an_epoch_that_an_older_run_decides_during_the_start_is_not_decided_again(rig: Rig):
    """Numbers never go back, whatever happens between the look into the log and START."""
    decided: list[int] = []

    class Listening(MemoryStore):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            won = super().put_if_absent(key, data)
            entry = decode_entry(data, int(key)) if won and key.isdigit() else None
            decided.extend([entry.epoch] if isinstance(entry, Decide) else [])
            return won

    rig.store = Listening()
    old, job, source = rig.begun(2)
    job.savepoint(rig.save, timeout=10)
    job.checkpoint(timeout=10)
    reach(source, job, 1)
    waiting = [True]

    def decides_meanwhile(step: Step) -> None:
        if waiting and step is Step.LOG_PUT_BEFORE:  # the older run is still busy with its rows, and has steps, too
            waiting.clear()
            job.checkpoint(timeout=10)

    with hooked(decides_meanwhile):
        rig.pipeline().run(restore=str(rig.save), rewind="a test")
    assert len(decided) == len(set(decided)), decided
    assert rig.target.counts("n") == Counter(range(1000)) + Counter(range(200, 300))
    with pytest.raises(FencedError):
        job.checkpoint(timeout=10)
    with pytest.raises(FencedError):
        old.wait(10)


def test_while_it_is_tried_again_other_calls_name_the_cause_in_time(rig: Rig):
    class Away(MemoryStore):
        def list_keys(self) -> list[str]:
            raise StoreError("the store is away")

    p = rig.pipeline(store=Away(), restart=RestartStrategy.fixed_delay(delay=60))
    p.setup = p.setup._replace(policy=CommitPolicy(puts=Backoff(attempts=0)))
    p.start()
    with pytest.raises(CheckpointFailedError, match=r"pipeline is restarting .*the store is away"):
        p.savepoint(rig.save, timeout=0.05)
    p.stop()


@pytest.mark.parametrize("why", ["", "  "])
def test_a_way_back_without_a_reason_is_refused(rig: Rig, why: str):
    """`rewind=os.environ.get("WHY", "")` must not write everything again."""
    rig.goes_on(0)
    with pytest.raises(ConfigurationError, match="rewind is empty"):
        rig.pipeline().start(rewind=why)
    rig.goes_on(100)


class Renewed(RunningSum):
    """The same name of a state, of another kind."""

    total: Any = ListState()


def test_a_state_that_became_another_kind_is_not_taken_for_empty(rig: Rig):
    rig.goes_on(0)
    p = pipeline(backend=FileBackend(rig.folder / "state"), store=rig.store, restart=RestartStrategy.none())
    source = p.source(SequenceSource(ROWS, batch_rows=100), uid="numbers").key_by("k")
    source.process(Renewed(), uid="sum", parallelism=2).sink(TargetSink(rig.target))
    with pytest.raises(ConfigurationError, match=r"sum has in .* of another kind .*: total \(a value\)"):
        p.start()
