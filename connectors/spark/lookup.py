"""What Spark's lookup of data sources finds of the formats: their names, without what they need to work.

As soon as a session is asked for a format that is not Spark's own, a Python process imports every module named
`pyspark_…` that is installed, and the session waits for it. With the formats themselves that took 0.4 s longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .data_sources import DataSource

if TYPE_CHECKING:
    from .formats import SinkFormat


class FoundFormat(DataSource):
    """Stand-in for the format of a connector, which it imports when it is asked for one.

    Attributes:
        connector_name: The connector's name; empty for the format `onceward`.
    """

    connector_name: ClassVar[str] = ""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return f"onceward-{cls.connector_name}" if cls.connector_name else "onceward"

    def __new__(cls, options: dict[str, str]) -> Any:
        """Make the format itself."""
        return cls.format_class()(options)

    @classmethod
    def format_class(cls) -> type[SinkFormat]:
        """Import the format's class."""
        from onceward.core.connector import connectors  # noqa: PLC0415 - see above

        from .formats import AnyFormat, format_of  # noqa: PLC0415

        return format_of(connectors()[cls.connector_name]) if cls.connector_name else AnyFormat
