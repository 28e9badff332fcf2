"""End-to-end exactly-once tests of anybody's pipeline: the driver is a program, whatever it is written with.

    from onceward.testing.pipeline import KafkaTopic, PipelineTest, Table

    class TestOrders(PipelineTest):
        command = [sys.executable, "driver.py"]
        inputs = KafkaTopic("orders", partitions=3)
        outputs = [KafkaTopic("big"), Table("big_orders", "id bigint, amount bigint")]

        def row(self, number):
            return {"id": number, "amount": number % 100}

        def expected(self, rows):
            return [row for row in rows if row["amount"] >= 50]

Each fault is one case (faults.py); `pytest --faults smoke|full|hours` selects them. What a case does: case.py.
"""

from __future__ import annotations

from ..judge import Record, Row
from .endpoints import Addresses, Custom, Endpoint, Folder, KafkaTopic, Table, UnreadableError
from .faults import FAULTS, NothingToHitError, Scene
from .suite import PipelineTest

__all__ = [
    "FAULTS",
    "Addresses",
    "Custom",
    "Endpoint",
    "Folder",
    "KafkaTopic",
    "NothingToHitError",
    "PipelineTest",
    "Record",
    "Row",
    "Scene",
    "Table",
    "UnreadableError",
]
