"""What Spark's lookup of data sources finds of the formats: their names, without what they need to work.

The first time that a session is asked for a format that is not Spark's own, it waits for a Python process that imports
every installed module named `pyspark_…`. Importing the formats there would add 0.2 s of CPU time (measured).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from onceward.core.errors import ConfigurationError

from ..read.data_sources import DataSource

if TYPE_CHECKING:
    from onceward.core.contract.connector import Connector

    from .formats import SinkFormat


class FoundFormat(DataSource):
    """Stand-in for the format of a connector, which it imports when it is asked for one.

    Attributes:
        connector_name: The connector's name; empty for the format `onceward`.
        format_of_its_own: The format's class as `module:class`, if it is not made for the connector. Then nothing waits
            until all connectors are loaded.
    """

    connector_name: ClassVar[str] = ""
    format_of_its_own: ClassVar[str] = ""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return f"onceward-{cls.connector_name}" if cls.connector_name else "onceward"

    def __new__(cls, options: dict[str, str]) -> Any:
        """Make the format itself."""
        return cls.format_class()(options)

    @classmethod
    def format_class(cls) -> type[SinkFormat]:
        """Import the format's class.

        Raises:
            ConfigurationError: No connector has that name where this runs.
        """
        if cls.format_of_its_own:
            module, _, name = cls.format_of_its_own.partition(":")
            kind: type[SinkFormat] = getattr(import_module(module), name)
            return kind
        from .formats import AnyFormat, format_of  # noqa: PLC0415 - see above

        return format_of(connector_of_format(cls.connector_name)) if cls.connector_name else AnyFormat


def connector_of_format(name: str) -> type[Connector]:
    """Return the connector of the format `onceward-<name>`.

    Raises:
        ConfigurationError: No connector has that name where this runs.
    """
    from onceward.core.contract.connector import connectors  # noqa: PLC0415 - see above

    connector = connectors().get(name)
    if connector is None:
        raise ConfigurationError(
            f"onceward-{name} is known here only by the name of its module, for the package's metadata is missing. "
            "Install or send the wheel to the Python that Spark runs: a folder of its source is not enough"
        )
    return connector
