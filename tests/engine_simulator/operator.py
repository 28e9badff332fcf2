"""Who starts the pipeline: a supervisor that repeats the command line, and a person who changes it now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.engine.starting_checkpoint import Restore
from onceward.core.errors import ConfigurationError, EpochConflictError

if TYPE_CHECKING:
    from random import Random

    from onceward.core.errors import OncewardError


class Operator:
    """The command line, and what it may lead to.

    Args:
        random: Decides.
        changes: How often a person changes the command line.
    """

    def __init__(self, random: Random, changes: int) -> None:
        self._random = random
        self.changes = changes
        self._reasons = 0
        self.folders: list[str] = []
        """Savepoints and checkpoints that were ever seen: some were never decided, some are gone."""
        self.there: list[str] = []
        """Those that are not gone."""
        self.command = Restore()
        self.accepts_new_types = False
        """Whether the next start says that keys of other types are meant."""
        self._interrupted = Restore()
        """The newest command line that may have begun a way back; where that did not end, it must be said again."""
        self.ways_back: set[str] = set()
        """Reasons with which the pipeline may have gone back: each once."""

    def next(self) -> Restore:
        """The command line of the next start; mostly the same again."""
        if self.changes and self.folders and self._random.random() < 0.7:
            self.changes -= 1
            self.change(self._something())
        accepts, self.accepts_new_types = self.accepts_new_types, False
        return self.command._replace(allow_non_restored=accepts)

    def change(self, command: Restore) -> None:
        """Give another command line from now on."""
        self.command = command

    def accepted(self) -> None:
        """The start took it, or died over it."""
        if self.command.why is not None:
            self.ways_back.add(self.command.why)
            self._interrupted = self.command

    def refused(self, error: OncewardError) -> None:
        """The start refused it: a person reads the message.

        Raises:
            OncewardError: Its message does not help.
        """
        if not isinstance(error, EpochConflictError | ConfigurationError):
            raise error
        if "Pass the same restore" in str(error):
            self.change(self._interrupted)
        elif self.command == Restore():
            raise error
        else:
            self.change(Restore())

    def _something(self) -> Restore:
        what = self._random.random()
        if what < 0.2:
            return Restore()
        self._reasons += 1
        folders = self.there if self.there and self._random.random() < 0.9 else self.folders
        folder = self._random.choice(folders) if what < 0.9 else None
        why = f"reason {self._reasons}" if what > 0.3 else None
        return Restore(path=folder, why=why, claim=self._random.random() < 0.3)
