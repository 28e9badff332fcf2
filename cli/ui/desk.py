"""What the page asks for: pipelines, what the targets show, and two actions, done by the functions of `onceward txn`.

The state is read from files, at most once a second however many pages are open. Targets are asked only when somebody
presses a button. An action names what its user has seen (the decision's position, or transactions by name), and the
pipeline in words: what has changed since is refused and not acted on.
"""

from __future__ import annotations

import dataclasses
import time
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.core.errors import ConfigurationError, EpochConflictError

from .. import show
from ..operate.logs import open_log
from ..operate.resolve import abort_undecided, chosen, commit_decided
from .model import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..operate import Search
    from .watch import Watch, Watched

_PAUSE: Final = 1.0
"""Seconds for which what was read is shown again."""
_FOUND: Final = 500
"""How many transactions of the targets are shown."""


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Commit the decision that was shown."""

    pipeline: str
    """Id of the pipeline on the page."""
    position: int
    """Of the decision in the log."""
    confirm: str
    """Name of the pipeline, typed by the user."""


class Abort(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Abort these transactions, which no decision names."""

    pipeline: str
    transactions: list[str]
    confirm: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page shows without asking a target."""

    pipelines: list[Pipeline]
    errors: list[str]
    actions: bool
    """Whether transactions can be ended from the page."""
    targets: str
    """Where it looks for transactions; empty: it was given no target."""
    warnings: dict[str, str]


class Desk:
    """Answers the page; its methods may be called from several threads.

    Args:
        watch: The pipelines.
        search: The options of the command, which say where the targets are.
        actions: Whether transactions can be ended.
        clock: Seconds.
    """

    def __init__(
        self, watch: Watch, search: Search, *, actions: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watch, self._search, self._clock = watch, search, clock
        self._reading, self._acting = Lock(), Lock()
        self._read_at, self._state = float("-inf"), b""
        given = (search.bootstrap_servers, search.dsn, search.sinks)
        self._titles = [target.title for target in search.targets()] if any(given) else []
        self._actions = actions and bool(self._titles)

    def state(self) -> bytes:
        """The state, as JSON."""
        with self._reading:
            if self._clock() - self._read_at >= _PAUSE:
                state = State(
                    pipelines=[watched.shown for watched in self._watch.look()],
                    errors=self._watch.errors,
                    actions=self._actions,
                    targets=", ".join(self._titles),
                    warnings={"fences": show.FENCES, "copy": show.COPY},
                )
                self._state = msgspec.json.encode(state)
                self._read_at = self._clock()
            return self._state

    def look(self) -> list[dict[str, Any]]:
        """What the targets show now, as `txn list --json` and `txn inspect --json` print it.

        Raises:
            OncewardError: No target was given, or one did not answer.
        """
        with self._acting, self._reading:
            logs = [watched.log for watched in self._watch.look()]
        with self._acting:
            return [one.as_json() for one in self._search.found(logs)[:_FOUND]]

    def commit(self, order: Commit) -> str:
        """Commit a decision, as `txn commit --yes`; what was done, in words.

        Raises:
            EpochConflictError: The decision is not the one that waits.
            OncewardError: As of commit_decided.
        """
        watched = self._confirmed(order.pipeline, order.confirm)
        with self._acting:
            log = open_log(watched.url, watched.log.pipeline, writing=True)
            decision = log.view.undone
            if decision is None or decision.position != order.position:
                raise EpochConflictError(
                    "the decision that you saw is no longer waiting; nothing was done", pipeline=log.pipeline
                )
            done = commit_decided(log, decision, self._search_of(watched).found([log]))
        if done is None:
            return f"Nothing to commit: another process has finished epoch {decision.epoch}"
        return f"Epoch {done.epoch} is completed; committed transactions: {done.committed}"

    def abort(self, order: Abort) -> str:
        """Abort transactions, as `txn abort NAME … --yes`; what was done, in words.

        Raises:
            ConfigurationError: One of them is not open, or must not be aborted; nothing was done.
            OncewardError: As of abort_undecided.
        """
        watched = self._confirmed(order.pipeline, order.confirm)
        if not order.transactions:
            raise ConfigurationError("no transaction was named; nothing was done")
        with self._acting:
            log = open_log(watched.url, watched.log.pipeline, writing=True)
            meant = chosen(self._search_of(watched).found([log]), order.transactions, orphaned=False)
            aborted = {c.identity() for c in abort_undecided(log, meant).aborted}
        left = [one.name for one in meant if one.committable.identity() not in aborted]
        return f"Aborted {len(meant) - len(left)} of {len(meant)}" + (
            f"; not aborted: {', '.join(left)}" if left else ""
        )

    def _confirmed(self, id_: str, confirm: str) -> Watched:
        if not self._actions:
            raise ConfigurationError("this page is read-only: it was started with --read-only, or without a target")
        with self._reading:
            watched = next((one for one in self._watch.look() if one.shown.id == id_), None)
        if watched is None:
            raise ConfigurationError("the pipeline no longer exists; nothing was done")
        if confirm != watched.log.pipeline:
            raise ConfigurationError("the name typed is not the pipeline's; nothing was done")
        return watched

    def _search_of(self, watched: Watched) -> Search:
        return dataclasses.replace(self._search, pipeline=watched.log.pipeline)
