"""The pipeline whose files are kept: `python -m tests.golden.job FOLDER BACKEND`, to its end or its death.

What a release writes is added by running it, killed between a decision and its commits, in a folder of its own:

    ONCEWARD_CRASH_AT=sink.commit.before:6 python -m tests.golden.job tests/golden/0.1-rocksdb rocksdb
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from onceward import FileSink, SqlAlchemySink
from onceward.core import FileBackend, MemoryBackend, RocksDBBackend, open_store
from onceward.sources import SequenceSource

from ..engine_kit import RunningSum, numbers, pipeline

ROWS = numbers(4_000, keys=40)
BACKENDS = {"memory": MemoryBackend, "files": FileBackend, "rocksdb": RocksDBBackend}


def slowly(record: dict[str, Any]) -> dict[str, Any]:
    """So that there are some checkpoints."""
    time.sleep(0.0002)
    return record


def run(backend: str) -> None:
    """In the current folder: a running sum into files and a table."""
    state = () if backend == "memory" else ("state",)
    job = pipeline("golden", store=open_store("log"), backend=BACKENDS[backend](*state))
    rows = job.source(SequenceSource(ROWS, units=2, batch_rows=20), uid="numbers").map(slowly, uid="slowly")
    keyed = rows.key_by("k")
    sums = keyed.process(RunningSum(), uid="sum", parallelism=2)
    sums.sink(FileSink("files", "files", format="jsonl"))
    totals = keyed.aggregate({"total": ("v", "sum"), "rows": ("*", "count")}, uid="totals")
    totals.sink(
        SqlAlchemySink("table", url=f"sqlite:///{Path.cwd()}/target.db", table="totals", key="k", create_table=True)
    )
    job.run()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    os.chdir(folder)
    run(sys.argv[2])
