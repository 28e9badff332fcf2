"""What the page asks for: pipelines, what the targets show, and two actions, done by the functions of `onceward txn`.

Pipelines are searched for below the given stores. The state is read from files, at most once a second however many
pages are open. A page gets all pipelines as a list, and the epochs of the one that it shows; then what changes in them.
Targets are asked only when somebody presses a button. An action names what its user has seen (the decision's position,
or transactions by name), and the pipeline in words: what has changed since is refused.
"""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.core.errors import ConfigurationError, EpochConflictError, NoDecisionLogError, OncewardError, text_of
from onceward.core.kit.secrets import without_logins
from onceward.core.log import read
from onceward.core.log.store import local_folder
from onceward.core.operations.discovery import Unsynced, log_folders
from onceward.operations import Log, PipelineState, abort_undecided, abortable, commit_decided, open_log

from .. import show
from ..advice import with_advice
from ..command_advice import message
from .changes import Changes, Update
from .model import PATIENCE, SEARCH_EVERY, Question, ShownPipeline, Watched, with_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onceward.operations import PipelineStatus

    from ..operate import Search

_PAUSE: Final = 1.0
"""Seconds for which what was read is shown again."""
_FOUND: Final = 500
"""Number of the targets' transactions that are shown at most."""


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Commit the decision that was shown."""

    pipeline: str
    """Id of the pipeline on the page."""
    position: int
    """Position of the decision in the log."""
    confirm: str
    """Name of the pipeline, typed by the user."""


class Abort(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Abort these transactions, which no decision names."""

    pipeline: str
    transactions: list[str]
    """Texts by which the page has shown them, each with the digest of its handle: a name may be used again
    meanwhile."""
    confirm: str


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The transactions that the targets show, and the errors of targets that did not answer."""

    transactions: list[dict[str, Any]]
    unanswered: dict[str, str]
    """Targets that did not answer, with their errors; their transactions are shown as the decision log knows them."""


class Watch:
    """All pipelines under the given stores.

    Args:
        stores: URLs of decision logs; of a local folder, its subfolders are searched, too.
        pipeline: Show this one alone; a store that is no folder needs it.
        clock: Clock that returns seconds.
        patience: Seconds to wait for a store that is no folder.
    """

    def __init__(
        self,
        stores: Sequence[str],
        pipeline: str | None = None,
        clock: Any = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._stores, self._pipeline, self._clock, self._patience = stores, pipeline, clock, patience
        self._questions = {url: Question(without_logins(url)) for url in stores}
        self._found: dict[str, Watched] = {}
        self._searched: float | None = None
        self.unreadable: dict[str, str] = {}
        """Errors by the store that cannot be read, or be searched to its end."""

    @property
    def errors(self) -> list[str]:
        """Stores that cannot be read, with their errors, a line each."""
        return [error if store in error else f"{store}: {error}" for store, error in self.unreadable.items()]

    def name_at(self, store: str) -> str:
        """Return which pipeline a store that cannot be read was asked for; empty if any in it was."""
        return self._pipeline or "" if local_folder(store) is None else ""

    def look(self) -> list[Watched]:
        """Return the pipelines as they are now."""
        now = self._clock()
        if self._searched is None or now - self._searched >= SEARCH_EVERY:
            self._searched, self.unreadable = now, {}
            for url in self._stores:
                try:
                    self._search(url)
                except NoDecisionLogError:
                    pass  # it comes with the pipeline's first start
                except OncewardError as error:
                    self.unreadable[url] = message(error)
        for watched in self._found.values():
            watched.look()
        return list(self._found.values())

    def _search(self, url: str) -> None:
        local = local_folder(url)
        if local is None:
            if url not in self._found:
                found = self._questions[url].ask(partial(open_log, url, self._pipeline), self._patience)
                self._found[url] = Watched(found, url, self._patience)
            return
        for folder in log_folders(local[0], self.unreadable):
            if str(folder) in self._found:
                continue
            store = Unsynced(folder)
            try:
                name = read(store).pipeline
            except Exception as error:  # noqa: BLE001 - whatever is in it, the folders after it may be sound
                self.unreadable[str(folder)] = text_of(error)
                continue
            if name and self._pipeline in (None, name):
                self._found[str(folder)] = Watched(Log(name, store), str(folder))


class Desk:
    """Answers the page; its methods may be called from several threads.

    Args:
        watch: Watch of the pipelines.
        search: The options of the command, which say where the targets are.
        actions: True if transactions can be ended.
        clock: Clock that returns seconds.
    """

    def __init__(
        self, watch: Watch, search: Search, *, actions: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watch, self._search, self._clock = watch, search, clock
        self._reading, self._acting = Lock(), Lock()
        self._read_at, self._shown = float("-inf"), dict[str, ShownPipeline]()
        self._list, self._opened = Changes(), dict[str, Changes]()
        self._titles = [target.title for target in search.targets()] if search.has_targets else []
        self._actions = actions and bool(self._titles)

    def state(self, since: int = 0) -> Update | None:
        """Return the list of pipelines, and what concerns all of them; None if nothing has changed.

        Args:
            since: The version that the page has; 0 if it has none.
        """
        with self._reading:
            self._read()
            return self._list.since(since)

    def pipeline(self, id_: str, since: int = 0) -> Update | None:
        """Return a pipeline and its epochs, without asking a target; None if nothing has changed.

        Args:
            id_: Id of the pipeline on the page.
            since: The version that the page has of it; 0 if it has none.

        Raises:
            ConfigurationError: It no longer exists.
        """
        with self._reading:
            self._read()
            if id_ not in self._shown:
                raise ConfigurationError("the pipeline no longer exists")
            shown = self._shown[id_]
            opened = self._opened.setdefault(id_, Changes())
            epochs = {str(one.epoch): with_steps(one, of_spark=shown.of_spark) for one in shown.epochs}
            starts = [msgspec.structs.replace(one, timeouts={}, targets={}) for one in shown.starts]
            whole = {**msgspec.structs.asdict(shown), "name": shown.pipeline, "epochs": [], "starts": starts}
            opened.put({"": {"pipeline": whole, "order": list(epochs)}, **epochs})
            return opened.since(since)

    def _read(self) -> None:
        if self._clock() - self._read_at < _PAUSE:
            return
        now = datetime.now(UTC)
        listed: list[tuple[PipelineStatus, ShownPipeline]] = []
        for one in self._watch.look():
            status = with_advice(one.status(now), one.url, self._search.target_words)
            if status.state is PipelineState.RUNNING:  # the page shows the times, which are not sent again as they pass
                status = msgspec.structs.replace(status, what="")
            listed.append((status, one.shown))
        listed.sort(key=lambda each: each[0].urgency)
        self._shown = {shown.id: shown for _, shown in listed}
        everything = {
            "order": [*self._shown],  # the one that needs somebody most first
            "errors": self._watch.errors,
            "actions": self._actions,  # whether transactions can be ended from the page
            "targets": ", ".join(self._titles),  # empty: it was given no target
            "warnings": {"fences": show.FENCES, "copy": show.COPY},
        }
        self._list.put({"": everything, **{shown.id: _in_list(shown, status) for status, shown in listed}})
        self._read_at = self._clock()

    def look(self) -> Look:
        """Return what the targets show now, as `txn list --json` and `txn inspect --json` print it.

        Raises:
            OncewardError: No target was given, or a store did not answer.
        """
        with self._acting, self._reading:
            logs = [watched.log for watched in self._watch.look()]
        with self._acting:
            search = dataclasses.replace(self._search)  # which reads files of settings again
            transactions = search.found(logs)[:_FOUND]
        return Look(transactions=[show.fields(one) for one in transactions], unanswered=search.unanswered)

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
            chosen = abortable(self._search_of(watched).found([log]), order.transactions, orphaned=False)
            left = [one.transaction.name for one in abort_undecided(log, chosen).left]
        return f"Aborted {len(chosen) - len(left)} of {len(chosen)}" + (
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


def _in_list(shown: ShownPipeline, status: PipelineStatus) -> dict[str, Any]:
    """Return a pipeline as the list on the page shows it."""
    newest = shown.epochs[0].epoch if shown.epochs else None
    more = {"name": shown.pipeline, "store": shown.store, "newest": shown.newest, "epoch": newest}
    return {"id": shown.id, **more, "status": status}
