"""Where transactions are: a Kafka cluster, a PostgreSQL database, or whatever the pipeline's own sinks write to.

Kafka and PostgreSQL can be asked for everything under onceward's names, of any pipeline, and need no setting of the
sink that wrote: a handle, a gid or a staged row says all that commit and abort want.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from onceward.core.errors import ConfigurationError
from onceward.sinks.base import DirectSink, Sink, TwoPhaseCommitSink
from onceward.sinks.direct import DirectlyWritten

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from onceward.connectors.database.postgres_sink import PostgresSink
    from onceward.core.sink import TwoPhaseCommit


class Names(NamedTuple):
    """Under which names something was found."""

    pipeline: str
    sink: str


class Target(Protocol):
    """Where transactions are."""

    title: str
    """For people."""

    def names(self, pipelines: Collection[str]) -> set[Names]:
        """Under which names something is open or prepared; `pipelines` are those that are asked for by name.

        Raises:
            ConfigurationError: It can be searched by a pipeline's name only.
            SinkError: The target did not answer.
        """
        ...

    def holds(self, kind: str, sink: str) -> bool:
        """Whether committables of this kind and sink are here."""
        ...

    def sink(self, name: str) -> TwoPhaseCommit[Any]:
        """By which transactions of this sink are listed and ended."""
        ...


class KafkaTarget:
    """A Kafka cluster.

    Args:
        bootstrap_servers: Its address.
        config: Further settings of the connection, under librdkafka's names.
    """

    def __init__(self, bootstrap_servers: str, config: Mapping[str, str]) -> None:
        from onceward.connectors.kafka.settings import KafkaSettings  # noqa: PLC0415 - an extra
        from onceward.connectors.kafka.sink import KafkaSink  # noqa: PLC0415

        self._make = KafkaSink
        self._settings = KafkaSettings(bootstrap_servers, config)
        self._how: dict[str, Any] = {"bootstrap_servers": bootstrap_servers, "config": config}
        self.title = f"Kafka at {bootstrap_servers}"

    def names(self, pipelines: Collection[str]) -> set[Names]:  # noqa: ARG002 - all that there are
        from onceward.connectors.kafka.admin import check_reachable, cluster_of  # noqa: PLC0415
        from onceward.connectors.kafka.ownership import open_names  # noqa: PLC0415

        check_reachable(self._settings)
        return {Names(*scope[:2]) for scope in open_names(cluster_of(self._settings).transactions)}

    def holds(self, kind: str, sink: str) -> bool:  # noqa: ARG002
        from onceward.connectors.kafka.handle import KIND  # noqa: PLC0415

        return kind == KIND

    def sink(self, name: str) -> TwoPhaseCommit[Any]:
        return self._make(name, **self._how)


class PostgresTarget:
    """A PostgreSQL database.

    Args:
        dsn: Connection string.
        ledger_schema: Schema of onceward's own tables; None: the default.
    """

    def __init__(self, dsn: str, ledger_schema: str | None) -> None:
        from onceward.connectors.database.postgres_sink import PostgresSink  # noqa: PLC0415 - an extra
        from onceward.connectors.database.target import Url  # noqa: PLC0415

        self._make = PostgresSink
        self.title = f"PostgreSQL {Url.from_dsn(dsn)}"
        self._how: dict[str, Any] = {"dsn": dsn}
        if ledger_schema is not None:
            self._how["ledger_schema"] = ledger_schema

    def names(self, pipelines: Collection[str]) -> set[Names]:  # noqa: ARG002 - all that there are
        return {Names(*scope[:2]) for scope in self._sink("any").open_names()}

    def holds(self, kind: str, sink: str) -> bool:  # noqa: ARG002
        from onceward.connectors.database.target import PREPARED, STAGED  # noqa: PLC0415

        return kind in (PREPARED, STAGED)

    def sink(self, name: str) -> TwoPhaseCommit[Any]:
        return self._sink(name)

    def _sink(self, name: str) -> PostgresSink:
        return self._make(name, table="any", **self._how)  # gid and staged row name what they are for


class SinksTarget:
    """The pipeline's own sinks, of any class.

    Args:
        sinks: As the pipeline has them.
        title: Where they come from.
    """

    def __init__(self, sinks: Iterable[Sink], title: str) -> None:
        self.title = title
        self._sinks: dict[str, TwoPhaseCommitSink[Any]] = {}
        for sink in sinks:
            if sink.name in self._sinks:
                raise ConfigurationError(f"{title}: two sinks are called {sink.name!r}")
            if isinstance(sink, DirectSink):
                self._sinks[sink.name] = DirectlyWritten(sink)
            elif isinstance(sink, TwoPhaseCommitSink):
                self._sinks[sink.name] = sink

    @classmethod
    def load(cls, reference: str) -> SinksTarget:
        """Import them.

        Args:
            reference: `module:name` of a sink, of several, or of a function that returns them; the module is looked for
                in the current folder first, and it is run, as by any import.

        Raises:
            ConfigurationError: There is no such thing, it is none, or its import fails.
        """
        module_name, _, name = reference.partition(":")
        if not module_name or not name.isidentifier():
            raise ConfigurationError(f"--sinks takes module:name, not {reference!r}")
        sys.path.insert(0, str(Path.cwd()))
        try:
            found = getattr(importlib.import_module(module_name), name)
            found = found() if callable(found) else found
        except (Exception, SystemExit) as error:
            raise ConfigurationError(f"cannot import {reference}: {type(error).__name__}: {error}") from error
        finally:
            sys.path.pop(0)
        sinks = [found] if isinstance(found, Sink) else found
        if not isinstance(sinks, list | tuple) or not all(isinstance(sink, Sink) for sink in sinks):
            raise ConfigurationError(f"{reference} is neither a sink nor a list of sinks: {type(found).__name__}")
        return cls(sinks, f"sinks of {reference}")

    def names(self, pipelines: Collection[str]) -> set[Names]:
        """See Target: each sink lists by the pipeline's exact name."""
        if not pipelines:
            raise ConfigurationError("--sinks list by their pipeline's name: give --pipeline, or its --store")
        return {Names(pipeline, sink) for pipeline in pipelines for sink in self._sinks}

    def holds(self, kind: str, sink: str) -> bool:  # noqa: ARG002
        return sink in self._sinks

    def sink(self, name: str) -> TwoPhaseCommit[Any]:
        return self._sinks[name]
