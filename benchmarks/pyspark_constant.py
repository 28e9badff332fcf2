"""A data source in Python that does nothing but yield rows: what any such source costs (`restart.py`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 400


class Rows(DataSourceStreamReader):
    """400 rows in each batch."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"at": int(time.time() * 1000)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes, bytes]]:
        for number in range(ROWS):
            yield str(number).encode(), b"x" * 100


class DefaultSource(DataSource):
    """`format("constant")`."""

    @classmethod
    def name(cls) -> str:
        return "constant"

    def schema(self) -> str:
        return "key binary, value binary"

    def streamReader(self, schema: object) -> Rows:  # noqa: N802 - Spark's name
        return Rows()
