"""`onceward txn list | inspect | commit | abort`, `checkpoints`, `repair-log`: what is in doubt, and how to end it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from onceward.core.contract.names import check_pipeline_name
from onceward.core.errors import (
    CommitPendingError,
    ConfigurationError,
    LogDamagedError,
    NoDecisionLogError,
    OncewardError,
    SinkError,
    StoreError,
)
from onceward.core.kit.secrets import without_logins
from onceward.core.log.store import local_folder
from onceward.core.log.writer import check_owner
from onceward.core.operations.status import commit_deadline
from onceward.operations import (
    CommitPlan,
    FoundTransaction,
    Log,
    abort_orphaned,
    abort_undecided,
    abortable,
    commit_decided,
    find_logs,
    history,
    open_log,
    pipeline_status,
    plan_commit,
    plan_repair,
    survey,
)
from onceward.operations import repair_log as repair

from . import show
from .advice import with_advice
from .shared_options import Access, AsJson, Pipeline, Yes, address_forms, load_sinks, targets_of, with_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onceward.core.contract.targets import OtherTransaction, Target

app = typer.Typer(no_args_is_help=True, help="List, inspect, commit and abort transactions that are in doubt.")

Store = Annotated[
    list[str] | None,
    typer.Option(
        help="URL of a decision log's store, or the checkpoint folder. `txn list`, `txn inspect` and `ui` take several."
    ),
]


@dataclass(kw_only=True)
class Search(Access):
    """The place of a search: the options of all `txn` commands."""

    store: Store = None
    pipeline: Pipeline = None
    sinks: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="The pipeline's own sinks, of any class, to import and search."),
    ] = None

    unanswered: dict[str, str] = field(init=False, default_factory=dict)
    """Targets that did not answer, and logs that could not be read, with what they raised."""
    others: Mapping[str, Sequence[OtherTransaction]] = field(init=False, default_factory=dict)
    """Open transactions of other applications, by target."""

    def found(self, logs: Sequence[Log] | None = None) -> Sequence[FoundTransaction]:
        """Return the transactions in the targets; those of the log's pipeline alone, if one is given."""
        if self.pipeline is not None:
            check_pipeline_name(self.pipeline)
        logs = self._readable() if logs is None else logs
        for log in logs:
            if log.view.moved:
                show.moved(log)
        report = survey(logs, self.targets(), self.pipeline, must_answer=False)
        self.unanswered.update(report.unanswered)
        self.others = report.others
        show.unanswered(self.unanswered)
        return report.transactions

    def _readable(self) -> list[Log]:
        """Return the logs that can be read, and remember why others cannot.

        Raises:
            StoreError: None can.
        """
        logs: list[Log] = []
        errors: dict[str, StoreError] = {}
        for url in self.store or []:
            try:
                logs.append(open_log(url, self.pipeline))
            except StoreError as error:
                errors[f"the decision log in {without_logins(url)}"] = error
        if errors and not logs:
            raise next(iter(errors.values()))
        self.unanswered.update({title: error.message for title, error in errors.items()})
        return logs

    def end(self) -> None:
        """End the command with exit code 1 if a target did not answer, or a log could not be read."""
        if self.unanswered:
            raise typer.Exit(1)

    def log(self, *, writing: bool) -> Log:
        """Return the one decision log, if it is the current one; from now on, only its pipeline is searched."""
        log = one_log(self.store, self.pipeline, writing=writing)
        check_owner(log.view, log.pipeline, log.store)
        self.pipeline = log.pipeline
        return log

    @property
    def has_targets(self) -> bool:
        """Whether a target was given."""
        return bool(self.at or self.sinks)

    @property
    def target_words(self) -> list[str]:
        """The options of the command line that say where the targets are."""
        words = [word for at in self.at or () for word in ("--at", at)]
        words += [word for setting in self.set_ or () for word in ("--set", setting)]
        return words + (["--sinks", self.sinks] if self.sinks is not None else [])

    def targets(self) -> list[Target]:
        """Return the targets from the options."""
        targets = [] if self.sinks is None else [load_sinks(self.sinks)]
        targets += targets_of(self)
        if not targets:
            raise ConfigurationError(
                f"no target was given. Pass --at {address_forms()}, or the pipeline's own --sinks module:name"
            )
        return targets


@app.command("list")
@with_group
def list_transactions(search: Search, *, as_json: AsJson = False) -> None:
    """List transactions under onceward's names that are open, prepared or awaiting commit, and what to do with each.

    Open transactions of other applications follow, because they hold back the readers of the same topics, too.
    """
    show.table(search.found(), as_json=as_json, unanswered=search.unanswered)
    show.others(search.others, as_json=as_json)
    search.end()


@app.command("inspect")
@with_group
def inspect(
    search: Search,
    *,
    transaction: Annotated[str, typer.Argument(help="Name of the transaction, as shown by `list`.")],
    as_json: AsJson = False,
) -> None:
    """Show all that is known about one transaction."""
    transactions = [one for one in search.found() if one.name == transaction]
    if not transactions:
        raise ConfigurationError(f"{transaction} is not in the given targets, and no waiting decision names it")
    show.details(transactions, as_json=as_json)
    search.end()


@app.command("commit")
@with_group
def commit_command(
    search: Search,
    *,
    skip_lost: Annotated[
        str | None,
        typer.Option(metavar="WHY", help="Skip transactions that can no longer be committed, and record this reason."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Commit all that is decided, and record it as completed, as the pipeline's next start would do.

    A run of the pipeline that is still alive is fenced and stops.
    """
    if skip_lost is not None and not skip_lost.strip():
        raise ConfigurationError("--skip-lost needs a reason, which is recorded in the decision log")
    log = search.log(writing=yes)
    decision = log.view.undone
    if decision is None:
        typer.echo(f"nothing to commit: pipeline {log.pipeline} has no uncommitted decision")
        return
    transactions = search.found([log])
    show.age(log)
    if not yes:
        plan = plan_commit(log, decision, transactions)
        if plan is None:
            _finished(decision.epoch)
            return
        show.table(plan.transactions)
        show.would(f"commit epoch {plan.epoch} of {log.pipeline}{_without(plan, skip_lost)}; {show.FENCES}")
        return
    typer.echo(f"committing epoch {decision.epoch} of {log.pipeline}, as its newest writer …", err=True)
    try:
        done = commit_decided(log, decision, transactions, skip_lost=skip_lost)
    except (SinkError, CommitPendingError):
        with suppress(OncewardError):
            found = survey([log], search.targets(), log.pipeline, must_answer=False).transactions
            show.rest(found, decision.epoch, commit_deadline(log, decision, found))
        raise
    if done is None:
        _finished(decision.epoch)
        return
    given_up = f"; skipped and recorded: {done.given_up}" if done.given_up else ""
    typer.echo(f"epoch {done.epoch} of {log.pipeline} is completed; committed transactions: {done.committed}{given_up}")


def _finished(epoch: int) -> None:
    typer.echo(f"nothing to commit: another process has finished epoch {epoch} (see `checkpoints`)")


def _without(plan: CommitPlan, skip_lost: str | None) -> str:
    if not plan.lost:
        return ""
    left = f", except for lost transactions ({len(plan.lost)})"
    return left if skip_lost is not None else f"{left}, and end with an error (--skip-lost WHY completes the epoch)"


@app.command("abort")
@with_group
def abort_command(
    search: Search,
    *,
    transactions: Annotated[
        list[str] | None,
        typer.Argument(
            help="The transactions, as this command shows them without --yes: a name with a digest of its handle, or "
            "the name alone, whatever it holds now; default: all in doubt."
        ),
    ] = None,
    orphaned: Annotated[
        bool, typer.Option("--orphaned", help="Their decision log is gone for good; requires their names.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Abort transactions that no decision names. Decided transactions are never aborted.

    The command first appends a START to the decision log, so that none of these can still be decided. This fences a
    running pipeline, which then stops with an error.
    """
    if orphaned and not transactions:
        raise ConfigurationError("--orphaned needs the names of the transactions: without their log, none is proven")
    log = None if orphaned and not search.store else search.log(writing=yes)
    candidates = search.found([log] if log is not None else [])
    chosen = abortable(candidates, transactions or [], orphaned=orphaned)
    if not chosen:
        typer.echo("nothing to abort")
        return
    if log is not None:
        show.age(log)
    if not yes:
        show.table(chosen)
        show.would(f"abort {len(chosen)}; {show.ORPHANS if orphaned else show.FENCES}")
        show.exactly(chosen)
        return
    done = abort_orphaned(chosen) if orphaned or log is None else abort_undecided(log, chosen)
    typer.echo(f"aborted {len(chosen) - len(done.left)} of {len(chosen)}")
    for one in done.left:
        typer.echo(f"not aborted: {one.transaction.name}: {one.why}; see `txn list`", err=True)
    raise typer.Exit(int(bool(done.left)))


@with_group
def checkpoints(search: Search, *, as_json: AsJson = False) -> None:
    """Show the state of a pipeline, its epochs, the engine's checkpoints, and every transaction that was ever skipped.

    If targets are given, the list also shows how many seconds are left to commit an epoch that waits for its commit.
    """
    log = one_log(search.store, search.pipeline)
    search.pipeline = log.pipeline
    transactions = search.found([log]) if search.has_targets else ()
    status = with_advice(pipeline_status(log, transactions), (search.store or [""])[0], search.target_words)
    past = history(log, transactions)
    waiting = [msgspec.structs.replace(one, expires_in=status.expires_in) for one in past.epochs if not one.completed]
    epochs = [*(one for one in past.epochs if one.completed), *waiting]
    show.past(msgspec.structs.replace(past, epochs=epochs), status, as_json=as_json)
    search.end()


def repair_log_command(
    *,
    store: Annotated[str, typer.Option(help="URL of the decision log's store, or the checkpoint folder.")],
    pipeline: Pipeline = None,
    why: Annotated[str | None, typer.Option(help="Why; recorded in the decision log. Required with --yes.")] = None,
    yes: Yes = False,
) -> None:
    """Make a decision log readable again whose server has lost entries in a failover, if what is left says enough.

    It does if the entry right behind the gap is a decision, which was made after all before it had been committed.
    Nothing is deleted. A run of the pipeline that is still alive is fenced and stops.
    """
    try:
        whole = open_log(store, pipeline)
    except LogDamagedError:
        whole = None
    if whole is not None:
        typer.echo(f"nothing to repair: the decision log of {whole.pipeline} has no gap")
        return
    if yes and not (why or "").strip():
        raise ConfigurationError("--yes needs --why: a reason, which is recorded in the decision log")
    log = open_log(store, pipeline, writing=yes, repairs=True)
    if not yes:
        plan = plan_repair(log)
        state = "completed" if plan.completed else "not completed; the pipeline's next start commits it"
        show.would(
            f"make void what is below entry {plan.position}, which decides epoch {plan.epoch} of {plan.pipeline} "
            f"({state}); {show.FENCES}"
        )
        return
    repaired = repair(log, why or "")
    typer.echo(f"the decision log of {log.pipeline} is readable again; it goes on with epoch {repaired.epoch}")


def one_log(stores: list[str] | None, pipeline: str | None, *, writing: bool = False) -> Log:
    """Open the one log given, or the one below a folder that is given, as `onceward status` finds it.

    Raises:
        ConfigurationError: None is given, or several; or the folder holds several, and none of them is named.
        NoDecisionLogError: There is none.
    """
    if len(stores or []) != 1:
        raise ConfigurationError("give the decision log's store, or the checkpoint folder, as --store, once")
    [store] = stores or []
    try:
        return open_log(store, pipeline, writing=writing)
    except NoDecisionLogError:
        if local_folder(store) is None:
            raise
        logs = {log.pipeline: log for log in find_logs(store).logs}
        if pipeline is None and len(logs) > 1:
            raise ConfigurationError(
                f"{store} holds the decision logs of {', '.join(sorted(logs))}: give --pipeline, or the folder of one"
            ) from None
        found = logs.get(pipeline) if pipeline is not None else next(iter(logs.values()), None)
        if found is None:
            raise
        return found
