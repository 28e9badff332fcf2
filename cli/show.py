"""How commands print: transactions, epochs, what was checked, JSON, and what they would do."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer
from rich.console import Console

from onceward.core.checkpoint.recovery import TransactionStatus
from onceward.core.contract.findings import Finding, Health
from onceward.core.contract.transaction import ANY_EPOCH, Observation
from onceward.core.kit.secrets import without_logins
from onceward.core.kit.times import duration
from onceward.operations import PipelineState

from .command_advice import advice

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rich.text import Text

    from onceward.core.contract.targets import OtherTransaction
    from onceward.core.operations.status import Deadline
    from onceward.operations import Epoch, FoundTransaction, History, Log, PipelineStatus


FENCES = "a run of this pipeline that is still alive would be fenced and stop"
COPY = "if this is only a copy of the log that the pipeline uses, stop here: decided rows would be lost"
TRUSTED = (
    "the time left is counted by the clocks of the driver and of this machine, which are trusted: a target that is "
    "named with --at, and answers, says its own"
)
ORPHANS = "if their decision log does exist somewhere and has decided them, their rows are lost"

_CONTROL: Final = re.compile(r"[^\n\t\x20-\x7e\xa0-\u2029\u202f-\u2065\u206a-\U0010ffff]")
"""Control characters, and those that turn the direction of text."""
_STYLE = {
    TransactionStatus.DECIDED: "green",
    TransactionStatus.COMPLETED: "red",
    TransactionStatus.IN_DOUBT: "yellow",
    TransactionStatus.LINGERING: "cyan",
    TransactionStatus.FOREIGN: "magenta",
    TransactionStatus.OUTDATED_LOG: "red",
    TransactionStatus.UNKNOWN: "magenta",
}


def table(transactions: Sequence[FoundTransaction], *, as_json: bool = False, unanswered: Collection[str] = ()) -> None:
    """Print a line for each transaction with its name, which is not cut, and its facts below.

    Args:
        transactions: Transactions to print, each with its status.
        as_json: True to print JSON.
        unanswered: Titles of targets that did not answer, and of logs that could not be read: nothing is known of them.
    """
    if as_json:
        print_json([fields(one) for one in transactions])
        return
    out = console()
    for one in transactions:
        c = one.committable
        known = [f"sink {c.sink} of {c.pipeline}"]
        known += [f"epoch {c.epoch}, subtask {c.subtask}"] if c.epoch != ANY_EPOCH else []
        known += [f"{c.rows} rows"] if c.rows else []
        known += [f"expires in {duration(one.expires_in)}"] if one.expires_in is not None else []
        where = f"{one.shown_state} in {one.target.title}" if one.target is not None else "in none of the targets given"
        out.print(c.transaction, style="bold")
        out.print(f"  {one.status}", style=_STYLE[one.status], end="")
        out.print(f"; {where}; {', '.join(known)}")
        out.print(f"  → {advice(one.advice)}")
    none = "onceward's own open, prepared or waiting transactions: none"
    found = f"transactions: {len(transactions)}" if transactions else none
    if unanswered:
        found = (
            f"transactions found: {len(transactions)}; there may be more where nobody answered: {', '.join(unanswered)}"
        )
    out.print(found)


def others(transactions: Mapping[str, Sequence[OtherTransaction]], *, as_json: bool) -> None:
    """Print a line for each open transaction of another application; beside JSON, as a remark."""
    for title, rows in transactions.items():
        typer.echo(f"open transactions of other applications in {title}: {len(rows)}", err=as_json)
        for one in rows:
            known = [one.producer, *([f"open for {duration(time.time() - one.started)}"] if one.started else [])]
            name = _CONTROL.sub("?", one.name)
            typer.echo(f"  {name}; {', '.join(known)}; in {', '.join(one.places) or 'no partition'}", err=as_json)
        typer.echo(
            "  → readers wait for their end: look for these applications. onceward does not end them", err=as_json
        )


def fields(transaction: FoundTransaction) -> dict[str, Any]:
    """Return a transaction as `--json` shows it; null is a fact that the target does not know."""
    c = transaction.committable
    dated = c.epoch != ANY_EPOCH
    return {
        "pipeline": c.pipeline,
        "sink": c.sink,
        "transaction": c.transaction,
        "exact": transaction.exact,
        "target": transaction.target.title if transaction.target is not None else None,
        "status": transaction.status,
        "state": transaction.shown_state,
        "held": transaction.held,
        "expires_in": transaction.expires_in,
        "epoch": c.epoch if dated else None,
        "subtask": c.subtask if dated else None,
        "rows": c.rows or None,
        "next": advice(transaction.advice),
        "committable": c,
    }


def details(transactions: Sequence[FoundTransaction], *, as_json: bool) -> None:
    """Print all facts about transactions, including the handle."""
    items = [msgspec.to_builtins(fields(one)) for one in transactions]
    if as_json:
        print_json(items)
        return
    out = console()
    for one in items:
        for name, value in one.items():
            shown = msgspec.json.encode(value).decode() if isinstance(value, dict) else value
            shown = duration(value) if name == "expires_in" and value is not None else shown
            out.print(f"{name:12} {'' if shown is None else shown}")


def unanswered(errors: Mapping[str, str]) -> None:
    """Print the targets that did not answer, and the decision logs that could not be read."""
    for title, error in errors.items():
        is_log = title.startswith("the decision log")
        why = (
            "cannot be read, so nothing of it is shown"
            if is_log
            else ("did not answer, so only what the decision log says of it is shown")
        )
        typer.echo(f"warning: {title} {why}: {error}", err=True)


def age(log: Log) -> None:
    """Print the age of the log's newest entry, by which an operator can tell a copy from a log in use."""
    entry = log.view.entries[-1]
    typer.echo(f"{log.store.describe()}: entry {entry.position} of {entry.at} is the newest; {COPY}", err=True)


def moved(log: Log) -> None:
    """Print where the log continues."""
    typer.echo(
        f"the decision log in {log.store.describe()} has ended: a savepoint has moved {log.pipeline} to "
        f"{log.view.moved}. Look there for what it has written since",
        err=True,
    )


def rest(transactions: Sequence[FoundTransaction], epoch: int, until: Deadline) -> None:
    """Print on standard error what of an epoch is committed, what still waits, and how long there is."""
    decided = [
        one for one in transactions if one.committable.epoch == epoch and one.status is TransactionStatus.DECIDED
    ]
    done = [one for one in decided if one.state is Observation.COMMITTED]
    left = [one for one in decided if one.state is not Observation.COMMITTED]
    when = "nothing of it expires"
    if until.seconds is not None:
        when = f"the first of it expires in {'at most ' * until.at_most}{duration(until.seconds)}"
    elif until.unknown:
        when = "how long it has is not known"
    why = f"; {until.unheard}" if until.unheard else ""
    parts = [f"committed: {_shares(done)}"] * bool(done) + [f"waits: {_shares(left)}; {when}{why}"] * bool(left)
    if parts:
        console(stderr=True).print(f"of epoch {epoch}, {'; '.join(parts)}")


def _shares(transactions: Sequence[FoundTransaction]) -> str:
    rows = Counter[str]()
    for one in transactions:
        rows[one.committable.sink] += one.committable.rows
    return ", ".join(f"{sink} {count} rows" for sink, count in sorted(rows.items()))


def print_status(one: PipelineStatus, *, with_store: bool = False) -> None:
    """Print the state of a pipeline, and what to do; with the place of its log, if others have the same name."""
    out = console()
    style = "green" if one.state is PipelineState.RUNNING else "dim" if one.state.is_well else "red"
    name = f"{one.pipeline} ({one.store})" if with_store and one.pipeline else one.pipeline or one.store
    out.print(f"{' '.join(name.split())}: ", style="bold", end="")
    out.print(one.state, style=style, end="")
    out.print(f"; {' '.join(one.what.split())}")
    if one.advice:
        out.print(f"  → {one.advice}: {one.command}")
        if one.fill_in:
            out.print(f"    {one.fill_in}")
        if one.at_most:
            out.print(f"    {TRUSTED}")
        out.print(f"    {one.docs}", style="dim")


def past(history: History, state: PipelineStatus, *, as_json: bool) -> None:
    """Print the state, epochs (two lines each: a table would cut the times), checkpoints, and what was given up."""
    listed = history.epochs
    if as_json:
        epochs = [_epoch_fields(one, history.pipeline) for one in listed]
        print_json({"epochs": epochs, "given_up": history.given_up, "status": state})
        return
    print_status(state)
    out = console()
    for one in listed:
        completed = f"completed {one.completed}" if one.completed else "waits for its commit"
        if one.expires_in is not None:
            at_most = "at most " * state.at_most
            completed += f"; a target ends its transactions in {at_most}{duration(one.expires_in)}"
        rows = ", ".join(f"{sink} {count} rows" for sink, count in one.sinks.items())
        out.print(f"epoch {one.epoch}: {rows} in {one.transactions} transactions")
        out.print(f"  decided {one.decided}, {completed}")
    out.print("the log keeps the newest epochs only" if listed else "the log holds no decided epoch")
    folders = [folder for one in listed for folder in (*one.retained, one.checkpoint) if folder]
    for folder in dict.fromkeys(folders):  # one that is retained is named by each epoch since
        out.print(f"checkpoint {folder}")
    for given in history.given_up:
        what = f"{given.action} {given.transaction}".rstrip()  # without a name: all of it
        out.print(f"{what} of epoch {given.epoch}, {given.at}")
        out.print(f"  by {given.who}: {given.why}")


def _epoch_fields(epoch: Epoch, pipeline: str) -> dict[str, Any]:
    """Return an epoch of a decision log as `--json` shows it; null is what the log does not say."""
    return {
        "pipeline": pipeline,
        "epoch": epoch.epoch,
        "decided": epoch.decided,
        "completed": epoch.completed,
        "rows": epoch.sinks,
        "transactions": epoch.transactions,
        "input": epoch.input,
        "checkpoint": epoch.checkpoint,
        "retained": epoch.retained,
        "expires_in": epoch.expires_in,
    }


_GIVE: Final = "give "
"""How the result of a check begins that was not made because nobody named what to check."""
_HEALTH: Final = {Health.OK: "green", Health.WARNING: "yellow", Health.FAILED: "red", Health.SKIPPED: "dim"}


def findings(found: Sequence[Finding], *, as_json: bool = False) -> None:
    """Print findings: a line each, and one with the advice. Nothing is cut or wrapped, so that it can be copied."""
    if as_json:
        print_json(found)
        return
    out = console()
    unasked = [finding for finding in found if finding.health is Health.SKIPPED and finding.found.startswith(_GIVE)]
    for finding in found:
        if finding in unasked:
            continue
        where = f" ({finding.where})" if finding.where else ""
        out.print(f"{finding.health:8}", style=_HEALTH[finding.health], end=" ")
        out.print(f"{finding.check}{where}: {' '.join(finding.found.split())}")
        if finding.advice:
            out.print(f"         → {finding.advice}")
    if unasked:
        out.print(f"{Health.SKIPPED:8}", style=_HEALTH[Health.SKIPPED], end=" ")
        needs: dict[str, list[str]] = {}
        for finding in unasked:
            needs.setdefault(_given(finding), []).append(finding.check)
        out.print("not asked about: " + "; ".join(f"{', '.join(checks)} ({need})" for need, checks in needs.items()))


def _given(finding: Finding) -> str:
    """Return the options that a check needs, from the words that say so."""
    return finding.found.removeprefix(_GIVE).removesuffix(" to check it")


class _Plain(Console):
    """Shows control characters instead of sending them, and no login: names and reasons come from logs and targets."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(_CONTROL.sub(lambda found: repr(found[0])[1:-1], without_logins(text)), **how)


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is: in a name, `:key:` is no emoji and `[red]` no color."""
    return _Plain(stderr=stderr, soft_wrap=True, highlight=False, emoji=False, markup=False)


def print_json(what: Any) -> None:
    """Print indented JSON; values without a form in JSON as text."""
    shown = _without_logins(msgspec.to_builtins(what, enc_hook=str))
    typer.echo(msgspec.json.format(msgspec.json.encode(shown)).decode())


def _without_logins(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_logins(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_logins(one) for one in value]
    return without_logins(value) if isinstance(value, str) else value


def exactly(transactions: Sequence[FoundTransaction]) -> None:
    """Print what names these transactions and no others that have the same names later."""
    console().print("to end exactly these, and nothing that has the same name by then, give:")
    for one in transactions:
        console().print(f"  {one.exact}")


def would(what: str) -> None:
    """Say on the terminal what the command would do, and that it needs --yes to do it."""
    console().print(f"would {what}. Pass --yes to do it")
