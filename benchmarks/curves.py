"""How cost grows with partitions, sinks, rows' sizes, epochs' lengths, keys and the size of a partition.

    python benchmarks/curves.py [partitions sinks sizes epochs keys memory] [--repeats 3]    # an hour
    python benchmarks/curves.py --page

Each value of an axis is measured for all ways in turn; a figure is the median of the repeats. What was measured is kept
in benchmarks/curves.json; the tables of docs/performance.md and its pictures are made of that.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from common import Bench, Run, bench, compare, machine, median, service_processes, timed
from engine import one_sum
from growth import Line

from onceward import FileSink, KafkaSink, PostgresSink
from onceward.connectors.spark import exactly_once
from onceward.core.log import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.sinks import TwoPhaseCommitSink

HERE = Path(__file__).parent
RESULTS = HERE / "curves.json"
DOCS = HERE.parent / "docs"
SPARKS = "Spark's Kafka sink (at least once)"
WORKER = "MiB of the Python worker"
KAFKA, POSTGRES, BOTH = "KafkaSink", "PostgresSink", "KafkaSource, minRecordsPerPartition=1000, and KafkaSink"
ROWS_A_SECOND = 5_000
"""What arrives, in the curve of epochs."""

Ways = dict[str, dict[str, float]]
"""What was measured of each way."""


@dataclass(frozen=True)
class Curve:
    """One axis."""

    axis: str
    values: tuple[float, ...]
    measure: Callable[[Bench, Any, int], Ways]
    """Of the lab, a value and the number of repeats."""
    drawn: str
    """The measure in the picture."""


def late(run: Run) -> float:
    """Return the median milliseconds of the later half of a run's epochs."""
    return median([float(each) for each in run.batches[len(run.batches) // 2 :]])


def kafka(lab: Bench, topic: str, name: str = "topic") -> KafkaSink:
    """Return a sink on this topic."""
    return KafkaSink(name, bootstrap_servers=lab.servers, topic=topic)


def postgres(lab: Bench, name: str = "table") -> PostgresSink:
    """Return a sink on a new table."""
    return PostgresSink(name, dsn=lab.dsn, table=lab.table())


def ours(lab: Bench, topic: str, per_trigger: int, *sinks: TwoPhaseCommitSink[Any]) -> Run:
    """Measure a query that writes with onceward."""
    return timed(exactly_once(lab.source(topic, per_trigger), *sinks, **lab.fresh()))


def without_jars(lab: Bench, topic: str, per_trigger: int, into: str) -> Run:
    """Measure a query that also reads with KafkaSource."""
    stream = lab.spark.readStream.format("onceward-kafka").option("kafka.bootstrap.servers", lab.servers)
    stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
    stream = stream.option("minRecordsPerPartition", 1000)
    rows = stream.option("maxOffsetsPerTrigger", per_trigger).load().selectExpr("key", "value")
    return timed(exactly_once(rows, kafka(lab, into), **lab.fresh()))


def sparks(lab: Bench, topic: str, per_trigger: int, into: str) -> Run:
    """Measure the same query with Spark's own sink."""
    writer = lab.source(topic, per_trigger).writeStream.format("kafka").option("topic", into)
    writer = writer.option("kafka.bootstrap.servers", lab.servers)
    return timed(writer.option("checkpointLocation", lab.checkpoint()))


def of_epochs(runs_by_way: dict[str, list[Run]]) -> Ways:
    """Return the time and CPU time of an epoch."""
    return {
        way: {
            "ms an epoch": median([late(run) for run in runs]),
            "CPU s an epoch": median([run.cpu / len(run.batches) for run in runs]),
        }
        for way, runs in runs_by_way.items()
    }


def of_rows(runs_by_way: dict[str, list[Run]]) -> Ways:
    """Return the rows per second, and the CPU time of a million."""
    return {
        way: {
            "rows/s": median([run.rows / run.seconds for run in runs]),
            "CPU s per million rows": median([run.cpu / run.rows * 1e6 for run in runs]),
        }
        for way, runs in runs_by_way.items()
    }


def partitions(lab: Bench, count: int, repeats: int) -> Ways:
    """Write 100 rows of 100 bytes for each partition, into as many."""
    rows, epochs = 100 * count, 12 if count <= 64 else 4
    topic, into = lab.filled_topic(epochs * rows, 100, count), lab.topic(count)
    ways = {
        SPARKS: lambda: sparks(lab, topic, rows, into),
        KAFKA: lambda: ours(lab, topic, rows, kafka(lab, into)),
        POSTGRES: lambda: ours(lab, topic, rows, postgres(lab)),
        BOTH: lambda: without_jars(lab, topic, rows, into),
    }
    return of_epochs(compare(ways, repeats))


def sinks(lab: Bench, count: int, repeats: int) -> Ways:
    """Write 400 rows from 4 partitions into each of so many sinks."""
    topic = lab.filled_topic(12 * 400, 100)
    into = [lab.topic() for _ in range(count)]
    ways = {
        KAFKA: lambda: ours(lab, topic, 400, *(kafka(lab, each, f"topic{n}") for n, each in enumerate(into))),
        POSTGRES: lambda: ours(lab, topic, 400, *(postgres(lab, f"table{n}") for n in range(count))),
    }
    return of_epochs(compare(ways, repeats))


def sizes(lab: Bench, size: int, repeats: int) -> Ways:
    """Write 64 MB of rows of this size, a million at most, in two epochs."""
    rows = min(1_000_000, 64_000_000 // size)
    topic, into = lab.filled_topic(rows, size), lab.topic()
    ways = {
        SPARKS: lambda: sparks(lab, topic, rows // 2, into),
        KAFKA: lambda: ours(lab, topic, rows // 2, kafka(lab, into)),
        POSTGRES: lambda: ours(lab, topic, rows // 2, postgres(lab)),
    }
    return {
        way: found
        | {"MB/s": found["rows/s"] * size / 1e6, "CPU s per GB": found["CPU s per million rows"] / size * 1e3}
        for way, found in of_rows(compare(ways, repeats)).items()
    }


def epochs(lab: Bench, seconds: float, repeats: int) -> Ways:
    """Write as many rows as arrive in an epoch of this length."""
    rows = int(ROWS_A_SECOND * seconds)
    topic, into = lab.filled_topic(rows * (12 if seconds < 5 else 3), 100), lab.topic()
    ways = {
        SPARKS: lambda: sparks(lab, topic, rows, into),
        KAFKA: lambda: ours(lab, topic, rows, kafka(lab, into)),
        POSTGRES: lambda: ours(lab, topic, rows, postgres(lab)),
    }
    runs = compare(ways, repeats)
    busy = {way: {"busy, % of the epoch": of["ms an epoch"] / seconds / 10} for way, of in of_epochs(runs).items()}
    return {way: of | busy[way] for way, of in of_rows(runs).items()}


def keys(lab: Bench, count: int, repeats: int) -> Ways:
    """Measure a million rows or more with so many keys, at random: as state of the engine, and as an upsert."""
    rows = max(1_000_000, count)
    chance = random.Random(7)
    numbers = pa.array([chance.randrange(count) for _ in range(rows)])
    table = pa.table({"user": pc.cast(numbers, pa.string()), "amount": numbers})
    results: Ways = {}
    for state in ("memory", "rocksdb")[count > 1_000_000 :]:
        seconds = []
        for _ in range(1 if count > 1_000_000 else repeats):
            began = time.perf_counter()
            one_sum(table, "aggregate", state, 20_000)
            seconds.append(time.perf_counter() - began)
        results[f"aggregate, {state}"] = {"rows/s": rows / median(seconds)}
    results["PostgresSink, upsert"] = {"rows/s": upserts(lab, count, table.slice(0, 500_000), repeats)}
    return results


def upserts(lab: Bench, count: int, rows: pa.Table, repeats: int) -> float:
    """Measure rows per second of epochs of 100,000 rows into a table that has each key."""
    name = lab.table()
    with psycopg.connect(lab.dsn) as connection:
        connection.execute(f"INSERT INTO {name} SELECT n::text, '0' FROM generate_series(0, {count - 1}) n")
        connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (key)")
    sink = PostgresSink("table", dsn=lab.dsn, table=name, key=["key"])
    line = Line(f"keys-{count}", MemoryStore(), sink)
    rows = pa.table({"key": rows["user"], "value": pc.cast(rows["amount"], pa.string())})
    for epoch in range(1 + repeats):
        line.write(epoch, rows.slice(epoch * 100_000, 100_000).to_batches(10_000))
    return 1e8 / median(line.milliseconds[1:])


def memory(lab: Bench, rows: int, _repeats: int) -> Ways:
    """Write one epoch of one partition with so many rows of 100 bytes; return the peak of its Python worker."""
    topic = lab.filled_topic(rows, 100, 1)
    into = lab.topic(1)
    ways: dict[str, Callable[[], TwoPhaseCommitSink[Any]]] = {
        KAFKA: lambda: kafka(lab, into),
        POSTGRES: lambda: postgres(lab),
        "FileSink": lambda: FileSink("files", str(lab.home / f"out-{rows}")),
    }
    results = {}
    for way, sink in ways.items():
        with peak() as most:
            ours(lab, topic, rows, sink())
        results[way] = {WORKER: most["worker"], "MiB of the JVM": most["jvm"]}
    return results


@contextmanager
def peak() -> Iterator[dict[str, float]]:
    """Return the most MiB that each kind of process has had; the services do not count."""
    most = {"jvm": 0.0, "worker": 0.0}
    done = threading.Event()

    def look() -> None:
        services = service_processes()
        while not done.wait(0.05):
            for each in psutil.Process().children(recursive=True):
                if each in services:
                    continue
                try:
                    kind = "jvm" if each.name() == "java" else "worker"
                    most[kind] = max(most[kind], each.memory_info().rss / 2**20)
                except psutil.NoSuchProcess:
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


CURVES = {
    "partitions": Curve("partitions", (1, 4, 16, 64, 256), partitions, "ms an epoch"),
    "sinks": Curve("sinks", (1, 2, 4, 8), sinks, "ms an epoch"),
    "sizes": Curve("bytes of a row", (10, 100, 1_000, 10_000, 100_000, 950_000), sizes, "MB/s"),
    "epochs": Curve("seconds of an epoch", (0.1, 0.5, 2, 10, 60), epochs, "CPU s per million rows"),
    "keys": Curve("keys", (10**3, 10**4, 10**5, 10**6, 10**7), keys, "rows/s"),
    "memory": Curve(
        "rows of a partition", (100_000, 400_000, 1_600_000, 6_400_000), memory, "MiB of the Python worker"
    ),
}


COLORS = {
    "Spark's Kafka sink (at least once)": "#b35806",
    "KafkaSink": "#0b7a4b",
    "PostgresSink": "#5aae61",
    "PostgresSink, upsert": "#5aae61",
    "FileSink": "#1f78b4",
    "KafkaSource, minRecordsPerPartition=1000, and KafkaSink": "#6a3d9a",
    "aggregate, memory": "#1f2933",
    "aggregate, rocksdb": "#9aa5b1",
}
"""Each way has one color in all pictures; those of Kafka, PostgreSQL and Spark are the demo's."""


def page() -> None:
    """Write the tables into the page, and draw the pictures."""
    results = json.loads(RESULTS.read_text())
    path = DOCS / "performance.md"
    text = path.read_text()
    for name, result in results.items():
        marked = re.compile(rf"(<!-- curve: {name} -->\n).*?(<!-- end of curve -->)", re.DOTALL)
        table = "\n".join(_table(CURVES[name], result["points"]))
        runs = "one run" if result["repeats"] == 1 else f"median of {result['repeats']}"
        note = f"*{result['machine']}; {result['date']}; {runs}.*"
        filled = (
            f"![{CURVES[name].drawn} over {CURVES[name].axis}](pictures/performance-{name}.svg)\n\n{note}\n\n{table}"
        )
        text = marked.sub(lambda found, filled=filled: f"{found[1]}\n{filled}\n\n{found[2]}", text)
        _draw(CURVES[name], result["points"], DOCS / "pictures" / f"performance-{name}.svg")
    path.write_text(text)


def _table(curve: Curve, points: dict[str, Ways]) -> Iterator[str]:
    measures = list(dict.fromkeys(measure for ways in points.values() for of in ways.values() for measure in of))
    yield f"| {curve.axis} | way | {' | '.join(measures)} |"
    yield "|---" * (len(measures) + 2) + "|"
    for value, ways in points.items():
        for way, of in ways.items():
            cells = [_figure(of[measure]) if measure in of else "" for measure in measures]
            yield f"| {float(value):,.10g} | {way} | {' | '.join(cells)} |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _draw(curve: Curve, points: dict[str, Ways], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - of the extra `demo`
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams["svg.hashsalt"] = curve.axis
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    for way in dict.fromkeys(way for ways in points.values() for way in ways):
        line = [(float(x), ways[way][curve.drawn]) for x, ways in points.items() if curve.drawn in ways.get(way, {})]
        axes.plot(*zip(*line, strict=True), marker="o", ms=4, label=way, color=COLORS[way])
    heights = [ways[way][curve.drawn] for ways in points.values() for way in ways if curve.drawn in ways[way]]
    axes.set_xscale("log")
    axes.set_xticks([float(x) for x in points])
    axes.set_yscale("log" if max(heights) > 3 * min(heights) else "linear")
    axes.set_ylim(0 if axes.get_yscale() == "linear" else None)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.10g}")
        axis.set_minor_formatter("")
    axes.set_xlabel(curve.axis)
    axes.set_title(curve.drawn, fontsize=10, loc="left")
    axes.grid(which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure what was asked for, keeping each curve as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="*", help="default: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="only the page and its pictures")
    parser.add_argument("--quick", action="store_true", help="only the first point of each curve; saves nothing")
    arguments = parser.parse_args()
    if arguments.page:
        page()
        return
    with bench() as lab:
        if not arguments.quick:
            partitions(lab, 4, 8)  # a JVM compiles what it has run often; before, it is slow
        for name in arguments.curves or CURVES:
            curve = CURVES[name]
            points: dict[str, Ways] = {}
            for value in curve.values[: 1 if arguments.quick else None]:
                points[str(value)] = curve.measure(lab, value, arguments.repeats)
                print(name, value, points[str(value)], flush=True)
            if arguments.quick:
                continue
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            results[name] = {
                "machine": machine(),
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "repeats": 1 if name == "memory" else arguments.repeats,
                "points": points,
            }
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            page()


if __name__ == "__main__":
    main()
