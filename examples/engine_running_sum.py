"""A keyed running sum in the embedded engine fails after its checkpoint, and each result shows once.

    python examples/engine_running_sum.py FOLDER

Six rows: b2 b3 c1 | checkpoint | a2 a2 c2. The function fails at the last one, once. The restart begins with the
checkpoint's state (a 0, b 5, c 1) and position (3): a2 a2 c2 are read again, and their first results were never shown.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from custom_sink import JsonLinesSink
from paced import Paced

from onceward import FileBackend, Pipeline, ProcessFunction, RestartStrategy, ValueState, open_store

ROWS = [{"user": text[0], "amount": int(text[1])} for text in ["b2", "b3", "c1", "a2", "a2", "c2"]]


class RunningSum(ProcessFunction):
    """The sum so far of each user."""

    total = ValueState(default=0)
    failed: list[bool] = []

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        self.total.set(self.total.get() + record["amount"])
        if context.key == "c" and self.total.get() == 3 and not self.failed:
            self.failed.append(True)
            raise RuntimeError("told to fail")
        yield {"user": context.key, "total": self.total.get()}


def main(folder: str) -> None:
    """Run it."""
    source = Paced(ROWS)
    pipeline = Pipeline(
        "running-sum",
        store=open_store(f"{folder}/log"),
        backend=FileBackend(f"{folder}/state"),
        restart=RestartStrategy.fixed_delay(attempts=1, delay=0),
    )
    totals = pipeline.source(source, uid="rows").key_by("user").process(RunningSum(), uid="sum", parallelism=3)
    totals.sink(JsonLinesSink("totals", f"{folder}/out"))
    source.go_to(3)
    job = pipeline.start()
    while source.given["0"] < 3:
        time.sleep(0.01)
    print("checkpoint", job.checkpoint(timeout=30), "holds what came before it:")
    print(shown(folder))
    source.go_to(6)
    pipeline.wait()
    print(f"restarted {job.restarts} time with checkpoint {job.restored}; in the end:")
    print(shown(folder))


def shown(folder: str) -> str:
    """Return what a reader of the folder sees."""
    return "".join(sorted(file.read_text() for file in Path(folder, "out").glob("*.jsonl")))


if __name__ == "__main__":
    main(sys.argv[1])
