"""A thousand rows into Redis or Valkey, exactly once: a stream of all of them, and a hash of the newest of each user.

    python examples/engine_redis.py redis://localhost:6379/0 FOLDER

Run it again with the same folder: what is written is not written again.
"""

import sys

from onceward import FileBackend, Pipeline, RedisSink, SequenceSource, open_store


def main(url: str, folder: str) -> None:
    """Run it."""
    rows = [{"user": f"u{n % 5}", "n": n} for n in range(1000)]
    events = RedisSink("events", f"{folder}/segments", url=url, key="events")
    newest = RedisSink("newest", f"{folder}/segments", url=url, key="user:{user}", form="hash")
    pipeline = Pipeline("numbers", store=open_store(f"{folder}/log"), backend=FileBackend(f"{folder}/state"))
    stream = pipeline.source(SequenceSource(rows), uid="numbers")
    stream.sink(events)
    stream.sink(newest)
    print(pipeline.guarantee())
    pipeline.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
