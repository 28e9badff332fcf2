"""A two-phase sink that keeps its transactions, claims and proofs as files in a folder.

The proof of a commit is kept until a newer transaction's epoch is completed. So a repeated commit is recognized,
whatever became of the data since; and the newest proof shows how far the decision log had come, which tells an outdated
copy of it. What is neither pending nor proven was never committed, unless its proof may be deleted already.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from onceward.core.folders import sync_folder
from onceward.core.names import NOTHING, Scope, file_name, outdated_log, parse_file_name
from onceward.core.sink import Txn
from onceward.core.transaction import Committable, Progress

from .base import TwoPhaseCommitSink
from .folders import FolderClaims, file_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from onceward.core.names import TransactionName

RELEASED: Final = ".released"
"""Marks the proof of a commit from before a rewind."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Sink = TypeVar("_Sink", bound="FolderSink[Any]")


def with_file_errors(
    method: Callable[Concatenate[_Sink, _Arguments], _Result],
) -> Callable[Concatenate[_Sink, _Arguments], _Result]:
    """Let a method raise the errors of a file system as RetryableSinkError."""

    @wraps(method)
    def call(self: _Sink, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with file_errors(self.name, self.directory):
            return method(self, *args, **kwargs)

    return call


class FolderSink(TwoPhaseCommitSink[Txn]):
    """What all sinks that prepare their data in a folder share.

    Attributes:
        kind: Of its committables.
        directory: The folder.
    """

    kind: ClassVar[str]
    directory: str

    @property
    @abstractmethod
    def _place(self) -> Path:
        """Folder of claims, transactions and proofs."""

    @abstractmethod
    def _pending(self) -> Iterable[TransactionName]:
        """Transactions whose commit has not begun."""

    @abstractmethod
    def _proven(self) -> Iterable[TransactionName]:
        """Transactions whose commit has begun."""

    @abstractmethod
    def _forget(self, name: TransactionName, *, give_up: bool) -> None:
        """Delete the proof of a commit. One that was not finished is left alone, or given up: then it is pending."""

    @with_file_errors
    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """What is pending of exactly this pipeline and sink."""
        return self._listed(name for name in self._pending() if name.scope.is_sink(scope.pipeline, scope.sink))

    @with_file_errors
    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        """What is pending of any sink of this pipeline and log that writes into the folder."""
        return self._listed(n for n in self._pending() if (n.scope.pipeline, n.scope.log) == (pipeline, log))

    def _listed(self, names: Iterable[TransactionName]) -> list[Committable]:
        return [Committable.named(self.kind, name) for name in names]

    @with_file_errors
    def check_claim(self, scope: Scope, newest: Progress) -> None:
        """Look whose the names are in this folder, and how far their log had come.

        Raises:
            EpochConflictError: They are another decision log's, or this one is an outdated copy.
        """
        FolderClaims(self._place).check(scope)
        known = self._committed_up_to(scope)
        if known > newest:
            raise outdated_log(scope, known, newest, self.directory)

    @with_file_errors
    def claim(self, scope: Scope) -> None:
        """Note in the folder which decision log owns the names.

        Raises:
            EpochConflictError: Another one owns them.
        """
        FolderClaims(self._place).claim(scope)

    @with_file_errors
    def release(self, scope: Scope) -> None:
        """Forget another log's claim, and how far this one had come. What is decided can still be finished."""
        FolderClaims(self._place).release(scope)
        for name in self._proven_of(scope):
            self._release_mark(name).touch()
        if self._place.is_dir():
            sync_folder(self._place)

    @with_file_errors
    def completed(self, scope: Scope, epoch: int) -> None:
        """Delete the proofs of all older commits but the newest."""
        released, known = self._released(), self._committed_up_to(scope)
        for name in self._proven_of(scope):
            if name.epoch < epoch and (name in released or progress_of(name) < known):
                self._forget(name, give_up=name in released)
                self._release_mark(name).unlink(missing_ok=True)

    def _proven_of(self, scope: Scope) -> set[TransactionName]:
        return {name for name in self._proven() if name.scope == scope}

    def _committed_up_to(self, scope: Scope) -> Progress:
        """How far the log had come by what this sink has committed since the newest rewind."""
        return newest_of(self._proven_of(scope) - self._released())

    def _released(self) -> set[TransactionName]:
        """Transactions from before a rewind: they say nothing of how far the log has come."""
        marks = self._place.glob(f".*{RELEASED}") if self._place.is_dir() else ()
        names = [parse_file_name(mark.name[1:].removesuffix(RELEASED)) for mark in marks]
        return {name for name in names if name is not None}

    def _release_mark(self, name: TransactionName) -> Path:
        return self._place / f".{file_name(str(name))}{RELEASED}"

    def _is_outlived(self, committable: Committable) -> bool:
        """Whether the proof of its commit, if there was one, may be deleted already."""
        known = self._committed_up_to(Scope(committable.pipeline, committable.sink, committable.log))
        return Progress(committable.writer, committable.epoch) < known


def progress_of(name: TransactionName) -> Progress:
    """How far a decision log is whose newest decision names this transaction."""
    return Progress(name.start, name.epoch)


def newest_of(names: Iterable[TransactionName]) -> Progress:
    """How far a decision log is that has decided these."""
    return max(map(progress_of, names), default=NOTHING)
