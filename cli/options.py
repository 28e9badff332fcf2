"""Options that several commands have, and what they name: decision logs, targets, a pipeline's own sinks.

Kafka and PostgreSQL can be asked for everything under onceward's names, of any pipeline, and need no setting of the
sink that wrote: a handle, a gid or a staged row says all that commit and abort want.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.errors import ConfigurationError, NoDecisionLogError
from onceward.core.kit.extras import needing
from onceward.core.kit.options import pairs
from onceward.core.log import open_store, read
from onceward.core.log.objects import CONDITIONAL_PUT
from onceward.core.log.reader import read_behind_gap
from onceward.core.log.store import IN_CHECKPOINT, local_folder, scheme_of
from onceward.sinks import DirectSink, Sink, TwoPhaseCommitSink

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from onceward.core.log import LogStore, LogView
    from onceward.core.transaction import Committable

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this option, only show what would be done.")]
Pipeline = Annotated[str | None, typer.Option(help="Name of the pipeline; not needed if its log is in a folder.")]


@dataclass(kw_only=True)
class Access:
    """How Kafka and PostgreSQL are reached."""

    bootstrap_servers: Annotated[str | None, typer.Option(help="Bootstrap servers of Kafka.")] = None
    kafka: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE|@FILE", help="A setting for the connection to Kafka, or a file of them; repeatable."
        ),
    ] = None
    dsn: Annotated[str | None, typer.Option(help="PostgreSQL's connection string.")] = None
    ledger_schema: Annotated[str | None, typer.Option(help="Schema of onceward's own tables in PostgreSQL.")] = None

    def __post_init__(self) -> None:
        self.config = pairs("--kafka", self.kafka)

    def check(self) -> None:
        """Refuse an option without the one that it belongs to.

        Raises:
            ConfigurationError: There is one.
        """
        if self.config and self.bootstrap_servers is None:
            raise ConfigurationError("--kafka needs --bootstrap-servers")
        if self.ledger_schema is not None and self.dsn is None:
            raise ConfigurationError("--ledger-schema needs --dsn")


def with_group(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take the fields of one parameter, which is a dataclass, as options: a subclass's own come first."""
    parameters = inspect.signature(command, eval_str=True).parameters
    [group] = [name for name, one in parameters.items() if is_dataclass(one.annotation)]
    kind: Any = parameters[group].annotation
    fields = inspect.signature(kind, eval_str=True).parameters
    options = [fields[name] for name in sorted(fields, key=lambda name: name not in kind.__annotations__)]

    def run(**given: Any) -> None:
        command(**{group: kind(**{one.name: given.pop(one.name) for one in options})}, **given)

    taken = [each for name, one in parameters.items() for each in (options if name == group else [one])]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {one.name: one.annotation for one in taken}
    keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in taken]
    vars(run)["__signature__"] = inspect.Signature(keyword)
    return run


@dataclass(frozen=True)
class Log:
    """A pipeline's decision log, in its store."""

    pipeline: str
    store: LogStore

    @property
    def view(self) -> LogView:
        """What it says now."""
        return read(self.store)


def open_log(url: str, pipeline: str | None = None, *, writing: bool = False, repairs: bool = False) -> Log:
    """Find a decision log; nothing is made or changed.

    Args:
        url: Of the store, as for open_store, or a Spark checkpoint folder.
        pipeline: Its name; a directory tells it by itself.
        writing: It will be written to: an object store is probed first, as by open_store.
        repairs: It has a gap, and counts from there on.

    Raises:
        NoDecisionLogError: There is none.
        ConfigurationError: The URL is not usable, or the log is another pipeline's.
        StoreError: The store did not answer.
        LogDamagedError: An entry is damaged or missing.
    """
    try:
        urlsplit(url)
    except ValueError:
        raise ConfigurationError("--store is not a valid URL: are its special characters percent-encoded?") from None
    if pipeline is None and local_folder(url) is None:
        raise ConfigurationError(f"{scheme_of(url)}:// holds the logs of several pipelines: name one with --pipeline")
    where = ""
    for location in _locations(url):
        store = open_store(location, pipeline=pipeline or "any", existing=True)
        where = where or store.describe()
        owner = (read_behind_gap if repairs else read)(store).pipeline
        if owner and pipeline not in (None, owner):
            raise ConfigurationError(f"the decision log in {where} belongs to {owner!r}, not to {pipeline!r}")
        if owner:
            return Log(owner, open_store(location, pipeline=owner) if writing else store)
    raise NoDecisionLogError(f"{where} has no decision log{f' of {pipeline}' if pipeline else ''}")


def _locations(url: str) -> Iterator[str]:
    """The URL, and what is in it if that is a checkpoint."""
    yield url
    path, mark, query = url.partition("?")
    folder, shared = local_folder(url) or (None, False)
    if folder is None and urlsplit(url).scheme in CONDITIONAL_PUT:
        yield f"{path.rstrip('/')}/{IN_CHECKPOINT}{mark}{query}"
    elif folder is not None and (folder / IN_CHECKPOINT).is_dir():
        yield f"{folder / IN_CHECKPOINT}?shared={shared}"


@dataclass(frozen=True, eq=False)
class Target:
    """Where transactions are.

    Attributes:
        title: For people.
        names: Under which names, pipeline and sink, something is open or prepared; it is given the pipelines that are
            asked for by name. Raises ConfigurationError if it can be searched by a pipeline's name only, and SinkError
            if the target did not answer.
        known: Under which sinks' names a pipeline of this name has written here, as far as the target remembers.
        holds: Whether committables of this kind and sink are here.
        sink: By which transactions of the sink of this name are listed and ended.
        expires: When the target ends each of these open transactions by itself, in seconds since 1970 on its clock, and
            None if it never does; None if its sinks know that.
    """

    title: str
    names: Callable[[Collection[str]], Iterable[tuple[str, str]]]
    known: Callable[[str], Iterable[str]]
    holds: Callable[[str, str], bool]
    sink: Callable[[str], TwoPhaseCommitSink[Any]]
    expires: Callable[[Sequence[Committable]], Sequence[float | None]] | None = None


def server_targets(access: Access) -> list[Target]:
    """The Kafka cluster and the PostgreSQL database that are named.

    Raises:
        ConfigurationError: An extra is not installed.
    """
    targets = []
    if access.bootstrap_servers is not None:
        with needing("kafka"):
            targets.append(_kafka(access.bootstrap_servers, access.config))
    if access.dsn is not None:
        with needing("postgres"):
            targets.append(_postgres(access.dsn, access.ledger_schema))
    return targets


def _kafka(bootstrap_servers: str, config: Mapping[str, str]) -> Target:
    from onceward.connectors.kafka.admin import check_reachable, cluster_of  # noqa: PLC0415 - an extra
    from onceward.connectors.kafka.ownership import open_names, sinks_of  # noqa: PLC0415
    from onceward.connectors.kafka.settings import KafkaSettings  # noqa: PLC0415
    from onceward.connectors.kafka.sink import KafkaSink  # noqa: PLC0415
    from onceward.connectors.kafka.transaction import KIND, Prepared  # noqa: PLC0415

    settings = KafkaSettings(bootstrap_servers, config)

    def names(_: Collection[str]) -> Iterable[tuple[str, str]]:
        check_reachable(settings)
        return {scope[:2] for scope in open_names(cluster_of(settings).transactions)}

    def expires(committables: Sequence[Committable]) -> list[float | None]:
        prepared = [Prepared.of(committable) for committable in committables]
        names = [one.handle.transactional_id for one in prepared if one is not None]
        described = cluster_of(settings).transactions.describe(names)
        return [
            None if one is None else one.ends_at(described[one.handle.transactional_id].timeout_ms) for one in prepared
        ]

    return Target(
        expires=expires,
        title=f"Kafka at {bootstrap_servers}",
        names=names,
        known=lambda pipeline: sinks_of(cluster_of(settings).transactions, pipeline),
        holds=lambda kind, _: kind == KIND,
        sink=lambda name: KafkaSink(name, bootstrap_servers=bootstrap_servers, config=config),
    )


def _postgres(dsn: str, ledger_schema: str | None) -> Target:
    from onceward.connectors.database.sinks import PostgresSink  # noqa: PLC0415 - an extra
    from onceward.connectors.database.target import PREPARED, STAGED, Url  # noqa: PLC0415

    schema: dict[str, Any] = {} if ledger_schema is None else {"ledger_schema": ledger_schema}

    def sink(name: str) -> PostgresSink:
        return PostgresSink(name, table="any", dsn=dsn, **schema)  # gid and staged row name what they are for

    return Target(
        title=f"PostgreSQL {Url.from_dsn(dsn)}",
        names=lambda _: {scope[:2] for scope in sink("any").open_names()},
        known=lambda pipeline: sink("any").known_sinks(pipeline),
        holds=lambda kind, _: kind in (PREPARED, STAGED),
        sink=sink,
    )


def sinks_target(sinks: Iterable[Sink], title: str) -> Target:
    """The pipeline's own sinks, of any class; the title says where they come from."""
    by_name: dict[str, TwoPhaseCommitSink[Any]] = {}
    for sink in sinks:
        if sink.name in by_name:
            raise ConfigurationError(f"{title}: two sinks are called {sink.name!r}; a name is unique in a pipeline")
        if isinstance(sink, DirectSink):
            by_name[sink.name] = DirectlyWritten(sink)
        elif isinstance(sink, TwoPhaseCommitSink):
            by_name[sink.name] = sink

    def names(pipelines: Collection[str]) -> Iterable[tuple[str, str]]:
        if not pipelines:
            raise ConfigurationError("--sinks list by their pipeline's name: give --pipeline, or its --store")
        return [(pipeline, sink) for pipeline in pipelines for sink in by_name]

    return Target(
        title=title,
        names=names,
        known=lambda _: by_name,
        holds=lambda _, sink: sink in by_name,
        sink=by_name.__getitem__,
    )


def load_sinks(reference: str) -> Target:
    """Import the pipeline's own sinks: `module:name` of a sink, of several, or of a function that returns them.

    Raises:
        ConfigurationError: There is no such thing, it is none, or its import fails.
    """
    found = imported("--sinks", reference, called=True)
    sinks = [found] if isinstance(found, Sink) else found
    if not isinstance(sinks, list | tuple) or not all(isinstance(sink, Sink) for sink in sinks):
        raise ConfigurationError(f"{reference} is neither a sink nor a list of sinks: {type(found).__name__}")
    return sinks_target(sinks, f"sinks of {reference}")


def imported(option: str, reference: str, *, called: bool = False) -> Any:
    """Import the `module:name` of an option, from the current folder first, and if `called`, call it if possible.

    Raises:
        ConfigurationError: There is no such thing, or the module or the call fails.
    """
    module, _, name = reference.partition(":")
    if not module or not name.isidentifier():
        raise ConfigurationError(f"{option} takes module:name, not {reference!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
        return found() if called and callable(found) else found
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"cannot import {reference}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
