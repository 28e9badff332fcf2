"""A client of Spark Connect in a process of its own: it starts a query, writes down its session and id, and ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from onceward import FileSink, Output, exactly_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onceward.core.log import EpochInput


def main(url: str, feed: str, folder: str, hold: str = "") -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    frame = spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", 1).json(feed)

    def pid(batch: DataFrame) -> DataFrame:
        import os

        return batch.selectExpr("id", f"{os.getpid()} AS pid")

    def completed(epoch: int, _about: EpochInput) -> None:
        import os
        from pathlib import Path

        Path(f"{folder}/completed-{epoch}").write_text(str(os.getpid()))

    on_complete: Any = completed
    if hold:
        from integration.connect_kit import HoldAt

        from onceward.core.kit.crash_points import Step

        on_complete = HoldAt(Step.DECIDE_BEFORE, Path(folder, "held"), Path(folder, "free"))

    query = exactly_once(
        frame,
        FileSink("files", f"{folder}/out"),
        Output(FileSink("pids", f"{folder}/pids"), pid),
        checkpoint=f"{folder}/checkpoint",
        pipeline="client",
        on_complete=on_complete,
    ).start()
    partial = Path(folder, "started.partial")
    partial.write_text(f"{spark.session_id} {query.id}")
    partial.rename(Path(folder, "started"))
    if hold:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
