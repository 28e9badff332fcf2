"""The base classes of data sources in Python, and the refusal where pyspark has none.

Spark takes data sources in Python from pyspark 4.0 on. On pyspark 3.5 an empty class replaces each of the base classes,
so that the modules of the formats can still be imported: exactly_once and explain use parts of them.
"""

from __future__ import annotations

import pyspark

from onceward.core.errors import ConfigurationError

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

    AVAILABLE = True
except ImportError:

    class DataSource:  # type: ignore[no-redef]
        """The base class of formats, none of which can be made."""

        def __init__(self, options: dict[str, str]) -> None:  # noqa: ARG002 - pyspark's signature
            need_available(f"format {self.name()}", "write with exactly_once(df, sink)")

        @classmethod
        def name(cls) -> str:
            """Return the name of the format."""
            raise NotImplementedError

    DataSourceReader = DataSourceStreamReader = InputPartition = type("NoDataSource", (), {})  # type: ignore[misc, assignment]
    AVAILABLE = False

__all__ = ["AVAILABLE", "DataSource", "DataSourceReader", "DataSourceStreamReader", "InputPartition", "need_available"]


def need_available(name: str, instead: str) -> None:
    """Refuse a feature that needs data sources in Python, unless pyspark has them.

    Args:
        name: The function or format that needs them.
        instead: Advice for the user who has no such data sources, as the end of a sentence.

    Raises:
        ConfigurationError: This version of pyspark has none.
    """
    if not AVAILABLE:
        raise ConfigurationError(
            f"{name} needs pyspark 4.0 or newer, which has data sources in Python, and pyspark {pyspark.__version__} "
            f"is installed. Upgrade pyspark, or {instead}"
        )
