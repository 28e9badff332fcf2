"""Sinks that keep their transactions, claims and proofs as files in a folder.

    <folder>/.identity                    tells this folder from another one, and from a place where none is mounted
    <folder>/.<pipeline>~<sink>.claim     the decision log that owns these names
    <folder>/.<transaction>.released      the proof of this transaction's commit is from before a rewind

Names that begin with a dot are hidden from all readers of files.

1. The proof of a commit is kept until a newer transaction's epoch is completed. So a repeated commit is recognized,
   whatever became of the data since.
2. The newest proof is never deleted: it shows how far the decision log had come, which tells an outdated copy of it.
   What is from before a rewind does not count.
3. What is neither pending nor proven was never committed, unless its proof may be deleted already.
4. A folder that does not know of the claim is not the one that was written into, or is not mounted: nothing is
   committed, and an absent file proves nothing there. A handle names the folder by its identity for the same reason.
5. One log owns the names. Claims race by creating the same file, which one of them does.
6. Names become paths, so a committable that somebody has altered is refused before anything is opened.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Generator
from functools import wraps
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

from onceward.core.contract.ledger import Ledger
from onceward.core.contract.names import (
    NOTHING,
    Remembered,
    file_name,
    other_log,
    outdated_log,
    parse_file_name,
)
from onceward.core.contract.sink import TwoPhaseCommitSink, Txn_co
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    Progress,
)
from onceward.core.errors import ConfigurationError, LogDamagedError, RetryableSinkError
from onceward.core.kit.folders import file_errors, make_folder, put_once, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from onceward.core.contract.names import Scope, TransactionName
    from onceward.core.kit.text_options import Names

IDENTITY: Final = ".identity"
RELEASED: Final = ".released"
_NOT_CLAIMED: Final = (
    "does not know this pipeline and sink: is it the right folder, and mounted? If that one is gone for good, start "
    "with on_lost='skip', which continues without what is in it"
)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class _InFolder(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> str | Path: ...


_Self = TypeVar("_Self", bound=_InFolder)


def with_file_errors(
    method: Callable[Concatenate[_Self, _Arguments], _Result],
) -> Callable[Concatenate[_Self, _Arguments], _Result]:
    """Make a method of a sink with a `folder`, or of its ledger, raise errors of a file system as RetryableSinkError.

    Those that stay until somebody changes something, such as a missing permission, become a SinkError. A method that
    is a generator then returns a list.
    """

    @wraps(method)
    def call(self: _Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with file_errors(self.name, self.folder):
            answer = method(self, *args, **kwargs)
            return cast("_Result", list(answer)) if isinstance(answer, Generator) else answer

    return call


class FolderSink(TwoPhaseCommitSink[Txn_co]):
    """Base of the sinks that prepare their data in a folder.

    Args:
        name: Name of the sink, unique in its pipeline.
        folder: The folder, of a local or mounted file system.
        select: SQL expressions that make this sink's columns out of the pipeline's; default: all columns.
        where: SQL condition; this sink gets only the rows for which it is true; default: all rows.

    Attributes:
        kind: Kind of its committables.

    Raises:
        ConfigurationError: The folder is a URL.
    """

    kind: ClassVar[str]
    layout: ClassVar[type[Any]] = dict
    """Layout of its committables' handles; a listed committable has an empty handle."""

    def __init__(self, name: str, folder: str | Path, *, select: Names | None = None, where: str | None = None) -> None:
        super().__init__(name, select=select, where=where)
        if "://" in str(folder):
            raise ConfigurationError(
                f"sink {name}: folder {folder} is a URL: give a folder of a local or mounted file system"
            )
        self.folder = str(Path(folder).absolute())

    @property
    def _place(self) -> Path:
        """Folder of claims, transactions and proofs."""
        return Path(self.folder)

    @abstractmethod
    def _commit(self, committable: Committable) -> CommitOutcome:
        """Commit the transaction; RetryableSinkError if that cannot be done now."""

    @abstractmethod
    def _abort(self, committable: Committable) -> AbortOutcome:
        """Abort the transaction; RetryableSinkError if that cannot be done now."""

    @abstractmethod
    def _look(self, committable: Committable) -> tuple[Observation, str]:
        """Look for the transaction in the folder; return its state, and a description."""

    @abstractmethod
    def _pending(self) -> Iterable[TransactionName]:
        """Return the transactions whose commit has not begun."""

    @abstractmethod
    def _proven(self) -> Iterable[TransactionName]:
        """Return the transactions whose commit has begun."""

    @abstractmethod
    def _forget(self, name: TransactionName, *, give_up: bool) -> None:
        """Delete the proof of a commit. One that was not finished is left alone, or given up: then it is pending."""

    def _check(self, committable: Committable) -> None:
        """Raise LogDamagedError for a committable that somebody has altered: names become paths."""
        if (committable.kind, committable.version) != (self.kind, 1):
            raise LogDamagedError(
                f"a committable of kind {committable.kind!r}, version {committable.version} is not a "
                f"{type(self).__name__}'s",
                sink=self.name,
                transaction=committable.transaction,
            )
        # (6) The name and the handle become paths.
        committable.read_name()
        if committable.handle:
            committable.read_handle(self.layout)

    def commit(self, committable: Committable) -> CommitOutcome:
        self._check(committable)
        # (6) Whatever is committed was prepared by a writer, which gives the handle.
        committable.read_handle(self.layout)  # only a listed one has none
        try:
            return self._commit(committable)
        except RetryableSinkError as error:
            return CommitOutcome(CommitStatus.RETRY_LATER, str(error))

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """Commit in order: none after one that has to wait.

        All of it waits if the folder does not know of the claim, which comes before any commit: no disk is mounted.
        """
        claims = FolderClaims(self._place)
        with file_errors(self.name, self.folder):
            # (4) A log claims the names before its first commit, so a folder without the claim is another one.
            claimed = all(claims.known(scope) == scope.log for scope in {c.scope for c in committables})
        waits = "" if claimed else f"{self._place} {_NOT_CLAIMED}"
        outcomes: list[CommitOutcome] = []
        for committable in committables:
            outcomes.append(CommitOutcome(CommitStatus.RETRY_LATER, waits) if waits else self.commit(committable))
            if outcomes[-1].status is CommitStatus.RETRY_LATER:
                # Readers of files see epochs in order: a later one must not show before an earlier one.
                waits = waits or "waits for an earlier epoch, which could not be committed"
        return outcomes

    def abort(self, committable: Committable) -> AbortOutcome:
        self._check(committable)
        try:
            return self._abort(committable)
        except RetryableSinkError as error:
            return AbortOutcome(AbortStatus.RETRY_LATER, str(error))

    @with_file_errors
    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        for committable in committables:
            self._check(committable)
        return [self._look(committable)[0] for committable in committables]

    @with_file_errors
    def why_silent(self, committables: Sequence[Committable]) -> str:
        looks = map(self._look, committables)
        return next((why for at, why in looks if at is Observation.NO_ANSWER), super().why_silent(committables))

    @with_file_errors
    def lingering(self, scope: Scope) -> Iterable[Committable]:
        pending = [name for name in self._pending() if name.scope.is_sink(scope.pipeline, scope.sink)]
        return [Committable.named(self.kind, name) for name in pending]

    @with_file_errors
    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        pending = [name for name in self._pending() if (name.scope.pipeline, name.scope.log) == (pipeline, log)]
        return [Committable.named(self.kind, name) for name in pending]

    def ledger(self) -> FolderLedger:
        return FolderLedger(self)

    def _is_outlived(self, committable: Committable) -> bool:
        """Return whether the proof of its commit, if there was one, may be deleted already."""
        # (3) A newer commit shows that proofs up to it may be gone.
        known = self.ledger().committed_up_to(committable.scope)
        return Progress(committable.generation, committable.epoch) < known

    def _identity(self) -> str:
        """Return the folder's random identity, made and synced at the first call; handles prepared there contain it."""
        path = self._place / IDENTITY
        if not path.exists():
            make_folder(self._place)
            put_once(path, secrets.token_hex(8).encode())
        return _text(path)

    def _elsewhere(self, committable: Committable) -> str:
        """Describe the mismatch if a committable was prepared elsewhere (wrong path, disk not mounted); else ""."""
        prepared_in = committable.handle.get("folder")
        path = self._place / IDENTITY
        # (4) A listed committable has an empty handle.
        if prepared_in is None or (path.exists() and _text(path) == prepared_in):
            return ""
        return (
            f"{self._place} is not the folder in which the transaction was prepared: is it the right one, and mounted? "
            f"If that one is gone for good, write {prepared_in} into {path}, and what was prepared there is lost"
        )


def _text(path: Path) -> str:
    """Read a small file. Undecodable bytes are replaced, so a damaged file compares unequal, without an error."""
    return path.read_text("utf-8", "replace").strip()


def newest_of(names: Iterable[TransactionName]) -> Progress:
    """Return the progress of a decision log that has decided these transactions."""
    return max((Progress(name.start, name.epoch) for name in names), default=NOTHING)


def names_of(texts: Iterable[str]) -> list[TransactionName]:
    """Return the transactions among the names of files or folders."""
    return [name for name in map(parse_file_name, texts) if name is not None]


class FolderLedger(Ledger):
    """What a folder remembers of decision logs: claims, and the proofs of commits.

    Args:
        sink: Sink that writes into the folder.
    """

    def __init__(self, sink: FolderSink[Any]) -> None:
        self.name, self.folder = sink.name, sink.folder
        self.place, self._proven, self._forget_proof = sink._place, sink._proven, sink._forget  # noqa: SLF001
        self.claims = FolderClaims(self.place)

    @with_file_errors
    def check_claim(self, scope: Scope, newest: Progress) -> Remembered | None:
        self.claims.check_claim(scope)
        known = self.committed_up_to(scope)
        # (2) The folder has seen a commit that this log does not know.
        if known > newest:
            raise outdated_log(scope, known, newest, self.folder)
        owned = self.claims.known(scope) == scope.log
        # Some tools that copy folders leave out empty ones, which are a FileSink's proofs.
        return None if owned and known == NOTHING else Remembered(owned, known)

    @with_file_errors
    def claim(self, scope: Scope) -> None:
        self.claims.claim(scope)

    @with_file_errors
    def release(self, scope: Scope) -> None:
        self.claims.release(scope)
        # (2) Marked and not deleted: a decision from before the rewind may still have to be finished.
        for name in self.proven_of(scope):
            self._release_mark(name).touch()
        if self.place.is_dir():
            sync_folder(self.place)

    @with_file_errors
    def completed(self, scope: Scope, epoch: int) -> None:
        """Delete the proofs of all older commits but the newest."""
        released, known = self.released(), self.committed_up_to(scope)
        for name in self.proven_of(scope):
            # (1) (2) The newest since the rewind stays; what is from before it may go.
            if name.epoch < epoch and (name in released or Progress(name.start, name.epoch) < known):
                # A mark that outlives its proof is harmless; a proof without its mark would count as progress.
                self._forget_proof(name, give_up=name in released)
                self._release_mark(name).unlink(missing_ok=True)

    @with_file_errors
    def forget(self, scope: Scope) -> None:
        """Delete the proofs of the log's commits, and its claim."""
        for name in self.proven_of(scope):
            self._forget_proof(name, give_up=False)
            self._release_mark(name).unlink(missing_ok=True)
        self.claims.forget(scope)

    def proven_of(self, scope: Scope) -> set[TransactionName]:
        """Return this log's transactions whose commit has begun."""
        return {name for name in self._proven() if name.scope == scope}

    def committed_up_to(self, scope: Scope) -> Progress:
        """Return how far the log had come as shown by this sink's commits since the newest rewind."""
        return newest_of(self.proven_of(scope) - self.released())

    def released(self) -> set[TransactionName]:
        """Return the transactions from before a rewind, which do not show how far the log has come."""
        marks = self.place.glob(f".*{RELEASED}") if self.place.is_dir() else ()
        return set(names_of(mark.name[1:].removesuffix(RELEASED) for mark in marks))

    def _release_mark(self, name: TransactionName) -> Path:
        return self.place / f".{file_name(str(name))}{RELEASED}"


class FolderClaims(Ledger):
    """The owners of the names of each pipeline and sink that wrote into a folder: decision logs.

    By itself, it is the ledger of a sink that does not record how far a log had come.

    Args:
        folder: Folder in which the claims are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.__folder = folder

    def check_claim(self, scope: Scope, newest: Progress = NOTHING) -> None:  # noqa: ARG002 - it does not know
        """Refuse names that another log owns, or a pipeline that another log has written here for another sink.

        Raises:
            EpochConflictError: It does, or has.
        """
        known = self.known(scope)
        with file_errors(scope.sink, self.__folder):
            others = {} if known is not None else self._of_pipeline(scope.pipeline)
        if known not in (None, scope.log):
            raise other_log(scope, str(known), str(self.__folder))
        for sink, log in others.items():
            if log != scope.log:
                raise other_log(scope, log, str(self.__folder), sink=sink)

    def claim(self, scope: Scope) -> None:
        """Make this log the owner of the names.

        Raises:
            EpochConflictError: Another one owns them.
        """
        with file_errors(scope.sink, self.__folder):
            make_folder(self.__folder)
        self.check_claim(scope)
        with file_errors(scope.sink, self.__folder):
            won = put_once(self._path(scope), scope.log.encode())
        if not won:
            self.check_claim(scope)  # (5) The loser reads who has won.

    def known(self, scope: Scope) -> str | None:
        """Return the log that owns the names, if one has claimed them."""
        path = self._path(scope)
        with file_errors(scope.sink, self.__folder):
            return _text(path) if path.exists() else None

    def forget(self, scope: Scope) -> None:
        """Delete this log's claim on the names."""
        if self.known(scope) == scope.log:
            self._path(scope).unlink(missing_ok=True)

    def release(self, scope: Scope, *, own: bool = False) -> None:
        """Forget other logs' claims on the pipeline; this one's too if the target itself has forgotten it."""
        with file_errors(scope.sink, self.__folder):
            if own:
                self._path(scope).unlink(missing_ok=True)
            for sink, log in self._of_pipeline(scope.pipeline).items():
                if log != scope.log:
                    self._path(scope._replace(sink=sink)).unlink(missing_ok=True)

    def _of_pipeline(self, pipeline: str) -> dict[str, str]:
        """Return the log that has claimed the pipeline's name, for each sink."""
        head, end = f".{file_name(f'{pipeline}:')}", ".claim"
        claims = sorted(self.__folder.glob(f"{escape(head)}*{end}")) if self.__folder.is_dir() else []
        return {path.name[len(head) : -len(end)]: _text(path) for path in claims}

    def _path(self, scope: Scope) -> Path:
        return self.__folder / f".{file_name(f'{scope.pipeline}:{scope.sink}')}.claim"
