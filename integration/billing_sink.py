"""A sink of a job's own, which the tests of deployment send to executors with `--py-files`."""

from __future__ import annotations

import os
import time
from typing import Any

from onceward import PostgresSink


class BillingSink(PostgresSink):
    """A PostgresSink whose tasks take their time before they prepare, so that faults find them at work."""

    pause = float(os.environ.get("JOB_PAUSE", "0"))

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        self.pause = type(self).pause  # of the driver: executors do not have its variables

    def pre_commit(self, transaction: Any) -> Any:
        time.sleep(self.pause)
        return super().pre_commit(transaction)
