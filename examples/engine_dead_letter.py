"""The embedded engine with a dead-letter output: good rows to one folder, rejected ones to another, in one epoch.

    python examples/engine_dead_letter.py FOLDER

Reads the JSON lines files in `FOLDER/in`, with rows {"user": …, "cents": "12"}; writes `FOLDER/paid` and
`FOLDER/rejected`. Run it again after more files have come: each row ends up in exactly one of the two, once. Needs the
extra `duckdb`, which computes `select` and `where`.
"""

import sys
from typing import Any

import pyarrow as pa

from onceward import FileSink, FileSource, Pipeline, open_store

ROWS = pa.schema({"user": pa.string(), "cents": pa.string()})
JUDGED = pa.schema({**dict(zip(ROWS.names, ROWS.types, strict=True)), "error": pa.string()})


def judge(row: dict[str, Any]) -> dict[str, Any]:
    """Say why a row is no good, instead of failing at it: an error here would stop the pipeline."""
    try:
        error = None if int(row["cents"]) > 0 else "not a payment"
    except (TypeError, ValueError) as reason:
        error = str(reason)
    return {**row, "error": error}


def main(folder: str) -> None:
    """Read what is there."""
    pipeline = Pipeline("paid-or-rejected", store=open_store(f"{folder}/log"))
    source = FileSource(f"{folder}/in", format="jsonl", schema=ROWS, bounded=True)
    judged = pipeline.source(source, uid="in").map(judge, uid="judge", schema=JUDGED)
    judged.sink(
        FileSink(
            "paid",
            f"{folder}/paid",
            format="jsonl",
            where="error IS NULL",
            select=['"user"', "cast(cents AS bigint) AS cents"],
        )
    )
    judged.sink(FileSink("rejected", f"{folder}/rejected", format="jsonl", where="error IS NOT NULL"))
    pipeline.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
