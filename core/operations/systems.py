"""Places and targets in the systems that have a connector, by the addresses of these systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..contract.connector import connectors
from ..errors import ConfigurationError
from ..kit.extras import needing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..contract.connector import Connector
    from ..contract.place import Place
    from ..contract.targets import Target


def open_target(system: str, at: str, settings: Mapping[str, str] | None = None) -> Target:
    """Return what lists and ends the transactions of any pipeline in a system, without the pipeline's code.

    Args:
        system: Name of its connector, such as `kafka` or `postgres`.
        at: Address of the system: bootstrap servers, a connection string, a URL.
        settings: Further settings of the connection: librdkafka's for Kafka, `ledger_schema` for a database.

    Raises:
        ConfigurationError: There is no such connector, or an extra is not installed.
        RefusedError: Transactions of this kind of system are found through the pipeline's own sinks alone.
    """
    connector = _connector(system, at, settings)
    with needing(connector.extra):
        return connector.target()


def open_place(name: str, at: str = "", settings: Mapping[str, str] | None = None) -> Place:
    """Return a place that rows are written to or read from, for `audit` and `compare_places`.

    Args:
        name: The system and what it calls the place: `kafka:TOPIC`, `postgres:TABLE`, `sql:TABLE`, `redis:KEY`,
            `files:FOLDER`, or one of another connector.
        at: The system's address: bootstrap servers, a connection string, a URL; empty for files.
        settings: Further settings of the connection, as for `open_target`.

    Raises:
        ConfigurationError: There is no such connector, nothing can be read back from it, or an extra is not installed.
    """
    system, _, place = name.partition(":")
    connector = _connector(system, at, settings)
    if connector.place_form and not place:
        raise ConfigurationError(f"{system!r} is not a place: give {system}:{connector.place_form}")
    with needing(connector.extra):
        return connector.place(place)


def _connector(name: str, at: str, settings: Mapping[str, str] | None) -> Connector:
    kind = connectors().get(name)
    if kind is None:
        raise ConfigurationError(f"there is no connector {name!r}: there are {', '.join(connectors())}")
    if bool(at) != bool(kind.address_form):
        form = f"give its address, which looks like {kind.address_form}" if kind.address_form else "it has no address"
        raise ConfigurationError(f"{name}: {form}")
    return kind(at, settings)
