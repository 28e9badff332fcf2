"""KafkaSource without jars against Spark's own Kafka source, in the JVM, where a query hands the rows to Python.

    python benchmarks/source.py [--rows 1000000] [--repeats 5]

Both read the same topic, all columns, into the same function of record batches (mapInArrow) and the noop sink. The CPU
time is that of driver, JVM and Python workers, without the broker.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from common import Bench, Run, bench, compare, machine, median, show, timed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

SIZE = 100
OURS, SPARKS = "KafkaSource (onceward-kafka)", "Spark's Kafka source"
FORMATS = {SPARKS: "kafka", OURS: "onceward-kafka"}


def passed_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the work that stands for a pipeline's."""
    yield from batches


def read(lab: Bench, form: str, topic: str, rows: int) -> Run:
    """Read two epochs of a query."""
    stream = lab.spark.readStream.format(form).option("kafka.bootstrap.servers", lab.servers)
    stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
    frame = stream.option("maxOffsetsPerTrigger", rows // 2).load()
    writer = frame.mapInArrow(passed_on, frame.schema).writeStream.format("noop")
    return timed(writer.option("checkpointLocation", lab.checkpoint()))


def main() -> None:
    """Measure both in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with bench() as lab:
        topic = lab.filled_topic(arguments.rows, SIZE)
        ways = {name: (lambda form=form: read(lab, form, topic, arguments.rows)) for name, form in FORMATS.items()}
        found = compare(ways, arguments.repeats)
    lines = ["| source | rows/s | CPU s per million rows | speed against Spark's | CPU against Spark's |"]
    lines.append("|---|---|---|---|---|")
    for name, runs in found.items():
        speed = median([run.rows / run.seconds for run in runs])
        cpu = median([run.clients / run.rows * 1e6 for run in runs])
        pairs = list(zip(found[SPARKS], runs, strict=True))
        faster = sorted(theirs.seconds / ours.seconds for theirs, ours in pairs)
        cheaper = sorted(ours.clients / theirs.clients for theirs, ours in pairs)
        ratios = [f"{median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})" for each in (faster, cheaper)]
        lines.append(f"| {name} | {speed:,.0f} | {cpu:.2f} | {ratios[0]} | {ratios[1]} |")
    show("Sources", lines, {"machine": machine(), "rows": f"{arguments.rows:,} of {SIZE} bytes"})


if __name__ == "__main__":
    main()
