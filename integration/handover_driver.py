"""A driver in a process of its own: JSON files to files, until it is killed, or another one takes over.

While there is a file NAME.slow in the folder, a row of its first epoch is not through.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from onceward import FileSink, exactly_once

if TYPE_CHECKING:
    from onceward.core.log import EpochInput


def main(name: str, root: str, take_over: str) -> None:
    folder = Path(root)
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", 1).json(f"{root}/feed")

    slow = folder / f"{name}.slow"
    if slow.exists():

        def wait(word: str) -> str:
            while slow.exists():
                time.sleep(0.1)
            return word

        rows = rows.withColumn("word", sf.udf(wait, "string")("word"))

    def completed(epoch: int, _about: EpochInput) -> None:
        with (folder / f"{name}.epochs").open("a") as file:
            file.write(f"{epoch} {time.time()}\n")

    writer = exactly_once(
        rows,
        FileSink("files", f"{root}/out"),
        checkpoint=f"{root}/checkpoint",
        pipeline="passed-on",
        on_complete=completed,
        take_over=float(take_over) if take_over else None,
    )
    (folder / f"{name}.asks").touch()
    again = True
    while again:
        query = writer.start()
        (folder / f"{name}.started").touch()
        query.awaitTermination()
        again = (folder / f"{name}.stays").exists()
        while (folder / f"{name}.stays").exists():
            time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
