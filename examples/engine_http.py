"""A thousand numbers to an HTTP server that honors idempotency keys, each once.

    python examples/engine_http.py URL FOLDER

Run it again with the same folder: what is delivered is not sent again.
"""

import sys

from onceward import FileBackend, HttpSink, Pipeline, SequenceSource, open_store


def main(url: str, folder: str) -> None:
    """Run it."""
    rows = [{"n": n, "text": f"row {n}"} for n in range(1000)]
    sink = HttpSink("hook", f"{folder}/segments", url=url, rows_per_send=100, server_honors_keys=True)
    pipeline = Pipeline("numbers", store=open_store(f"{folder}/log"), backend=FileBackend(f"{folder}/state"))
    pipeline.source(SequenceSource(rows), uid="numbers").sink(sink)
    print(pipeline.guarantee())
    pipeline.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
