"""Two sources, two summing subtasks, one sink, and barriers that arrive at different times.

    python examples/engine_two_sources.py FOLDER

The second source is slow: its barrier comes late. Meanwhile the first one's barrier has arrived and rows 5 and 4 wait
behind it. They are no part of the checkpoint: they show only with the next one.
"""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from custom_sink import JsonLinesSink
from paced import Paced

from onceward import MemoryBackend, Pipeline, ProcessFunction, ValueState, open_store


class Sum(ProcessFunction):
    """The sum of odd numbers, and that of even ones."""

    total = ValueState(default=0)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        self.total.set(self.total.get() + record["number"])
        yield {"number": record["number"], "kind": context.key, "sum": self.total.get()}


class Slow(Paced):
    """Takes its time to read its last row."""

    busy = threading.Event()
    go_on = threading.Event()

    def read(self, split: Any) -> Iterator[Any]:
        for piece in super().read(split):
            if piece.next == self.rows:
                self.busy.set()
                self.go_on.wait()
            yield piece


def main(folder: str) -> None:
    """Run it."""
    first, second = Paced(numbers(1, 2, 3, 5, 4, 6)), Slow(numbers(7, 8))
    pipeline = Pipeline("two-sources", store=open_store(f"{folder}/log"), backend=MemoryBackend())
    one, two = pipeline.source(first, uid="first"), pipeline.source(second, uid="second")
    sums = one.union(two).key_by("kind").process(Sum(), uid="sum", parallelism=2)
    sums.sink(JsonLinesSink("sums", f"{folder}/out"))

    job = pipeline.start()
    job.checkpoint(timeout=30)  # of nothing: now all tasks run
    first.go_to(3)
    second.go_to(2)
    second.busy.wait()  # it is about to give 8 …
    while first.given["0"] < 3:
        time.sleep(0.01)
    done: list[int] = []
    checkpoint = threading.Thread(target=lambda: done.append(job.checkpoint(timeout=30)))
    checkpoint.start()  # … so its barrier comes after 8, while that of the first source comes after 3
    time.sleep(1)
    first.go_to(5)
    time.sleep(0.5)
    print("complete:", bool(done), "- the barrier of the second source has not come yet; 5 and 4 wait")
    second.go_on.set()
    checkpoint.join()
    print(f"checkpoint {done[0]} holds", shown(folder))
    first.go_to(6)  # the last row: the end, and its checkpoint, may come
    pipeline.wait()
    print("in the end there are", shown(folder))


def numbers(*found: int) -> list[dict[str, Any]]:
    """Return the rows."""
    return [{"number": n, "kind": "odd" if n % 2 else "even"} for n in found]


def shown(folder: str) -> list[int]:
    """Return the numbers that a reader of the folder sees."""
    lines = [line for file in Path(folder, "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(int(line.split('"number": ')[1].split(",")[0]) for line in lines)


if __name__ == "__main__":
    main(sys.argv[1])
