"""A thousand rows into an SQLite file, exactly once: a table of all of them, and the newest of each user.

    python examples/sqlalchemy_sqlite.py FOLDER

Run it again with the same folder: what is written is not written again. With another URL the same program writes to
PostgreSQL or MariaDB.
"""

import sys
from pathlib import Path

from onceward import FileBackend, Pipeline, SqlAlchemySink, open_store
from onceward.sources import SequenceSource


def main(folder: str, url: str | None = None) -> None:
    """Run it."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    url = url or f"sqlite:///{Path(folder).resolve()}/shop.db"
    rows = [{"person": f"u{n % 5}", "n": n} for n in range(1000)]
    events = SqlAlchemySink("events", url=url, table="events", create_table=True)
    newest = SqlAlchemySink("newest", url=url, table="newest", key="person", create_table=True)
    pipeline = Pipeline("numbers", store=open_store(f"{folder}/log"), backend=FileBackend(f"{folder}/state"))
    stream = pipeline.source(SequenceSource(rows), uid="numbers")
    stream.sink(events)
    stream.sink(newest)
    print(pipeline.guarantee())
    pipeline.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
