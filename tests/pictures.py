"""The pictures of the documentation, as SVG: sequences of messages between processes and systems, and a map of them.

    python -m tests.pictures    # writes docs/pictures/

They have a light background of their own, so they can be read in light and dark themes, and no script and no web font.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent.parent / "docs" / "pictures"
COLUMN, TOP, ROW, EDGE = 210, 64, 40, 110
"""Distances in pixels: between lifelines, above the first row, between rows, beside the outermost lifelines."""
INK, FAINT, GOOD, BAD, NOTE = "#1f2933", "#9aa5b1", "#0b7a4b", "#c62828", "#fff4d6"


class Arrow(NamedTuple):
    """A message from one lifeline to another."""

    start: str
    end: str
    text: str
    color: str = INK
    refused: bool = False
    """Whether it ends in a cross."""


class Note(NamedTuple):
    """A box on a lifeline."""

    at: str
    text: str
    color: str = INK


class Crash(NamedTuple):
    """The process of a lifeline dies; it has no line until a Restart."""

    at: str
    text: str


class Restart(NamedTuple):
    """A new process begins in a lifeline."""

    at: str
    text: str


Step = Arrow | Note | Crash | Restart
EXECUTORS, DRIVER, LOG, TOPIC, TABLE = "executors", "driver", "decision log", "Kafka topic", "PostgreSQL table"
WRITE = [
    Arrow(DRIVER, EXECUTORS, "write batch 42"),
    Arrow(EXECUTORS, TOPIC, "rows, then flush: prepared"),
    Arrow(EXECUTORS, TABLE, "rows, then PREPARE TRANSACTION"),
    Arrow(EXECUTORS, DRIVER, "committables"),
]
PICTURES: Final[dict[str, tuple[list[str], list[Step]]]] = {
    "duplicates": (
        [DRIVER, "Spark's checkpoint", TOPIC, "reader"],
        [
            Arrow(DRIVER, "Spark's checkpoint", "offsets of batch 42"),
            Arrow(DRIVER, TOPIC, "rows of batch 42"),
            Arrow(TOPIC, "reader", "rows of batch 42"),
            Crash(DRIVER, "killed"),
            Restart(DRIVER, "new driver"),
            Arrow("Spark's checkpoint", DRIVER, "42 is not logged as done"),
            Arrow(DRIVER, TOPIC, "rows of batch 42 again", BAD),
            Arrow(TOPIC, "reader", "the same rows twice", BAD),
        ],
    ),
    "epoch": (
        [EXECUTORS, DRIVER, LOG, TOPIC, TABLE],
        [
            *WRITE,
            Note(TABLE, "invisible so far"),
            Arrow(DRIVER, LOG, "DECIDE 42", GOOD),
            Arrow(DRIVER, TOPIC, "commit by handle"),
            Arrow(DRIVER, TABLE, "COMMIT PREPARED"),
            Note(TABLE, "visible, exactly once", GOOD),
            Arrow(DRIVER, LOG, "COMPLETED 42"),
        ],
    ),
    "processes": (
        ["your program", "Spark's JVM", "format's process", "Python worker", LOG],
        [
            Arrow("your program", "Spark's JVM", "describe, start"),
            Note("Spark's JVM", "foreachBatch"),
            Arrow("Spark's JVM", "your program", "micro-batch, in a thread"),
            Arrow("your program", "Python worker", "task of each partition: write, prepare"),
            Arrow("Python worker", "your program", "acknowledgements"),
            Arrow("your program", LOG, "START, DECIDE, COMPLETED", GOOD),
            Note("Spark's JVM", "a format"),
            Arrow("Spark's JVM", "format's process", "make the writer"),
            Arrow("format's process", LOG, "START", GOOD),
            Arrow("format's process", "Python worker", "write, prepare"),
            Arrow("Python worker", "Spark's JVM", "messages with acknowledgements"),
            Arrow("Spark's JVM", "format's process", "commit"),
            Arrow("format's process", LOG, "DECIDE, COMPLETED", GOOD),
        ],
    ),
    "crash-before-decision": (
        [EXECUTORS, DRIVER, LOG, TOPIC, TABLE],
        [
            *WRITE,
            Crash(DRIVER, "killed"),
            Restart(DRIVER, "new driver"),
            Arrow(DRIVER, LOG, "START: fences older runs"),
            Arrow(LOG, DRIVER, "42 is not decided"),
            Arrow(DRIVER, TOPIC, "abort", BAD),
            Arrow(DRIVER, TABLE, "ROLLBACK PREPARED", BAD),
            Arrow(DRIVER, EXECUTORS, "write batch 42"),
            Note(TABLE, "rolled back", GOOD),
        ],
    ),
    "crash-after-decision": (
        [EXECUTORS, DRIVER, LOG, TOPIC, TABLE],
        [
            *WRITE,
            Arrow(DRIVER, LOG, "DECIDE 42", GOOD),
            Arrow(DRIVER, TOPIC, "commit by handle"),
            Crash(DRIVER, "killed"),
            Note(TABLE, "prepared, not lost"),
            Restart(DRIVER, "new driver"),
            Arrow(DRIVER, LOG, "START"),
            Arrow(LOG, DRIVER, "42 is decided"),
            Arrow(DRIVER, TOPIC, "commit again: already committed"),
            Arrow(DRIVER, TABLE, "COMMIT PREPARED"),
            Arrow(DRIVER, LOG, "COMPLETED 42"),
            Note(DRIVER, "42 again: writes nothing", GOOD),
        ],
    ),
    "fencing": (
        ["older driver", LOG, "newer driver"],
        [
            Arrow("older driver", LOG, "START, position 7"),
            Note("older driver", "suspended"),
            Arrow("newer driver", LOG, "START, position 8"),
            Note("older driver", "wakes up"),
            Arrow("older driver", LOG, "DECIDE, position 8: taken", BAD, refused=True),
            Note("older driver", "FencedError: stops", BAD),
            Arrow("newer driver", LOG, "DECIDE, position 9", GOOD),
        ],
    ),
    "checkpoint": (
        ["coordinator", "source", "count", "sink", "target", LOG],
        [
            Arrow("coordinator", "source", "trigger 7"),
            Note("source", "keeps its position"),
            Arrow("source", "count", "barrier 7"),
            Note("count", "freezes its state"),
            Arrow("count", "sink", "barrier 7"),
            Arrow("sink", "target", "flush, prepare"),
            Note("count", "writes its state out"),
            Arrow("source", "coordinator", "position"),
            Arrow("count", "coordinator", "place of the state"),
            Arrow("sink", "coordinator", "committable"),
            Note("coordinator", "writes the metadata"),
            Arrow("coordinator", LOG, "DECIDE 7: positions, state, transactions", GOOD),
            Arrow("coordinator", "target", "commit by handle"),
            Note("target", "rows are visible", GOOD),
            Arrow("coordinator", LOG, "COMPLETED 7"),
            Arrow("coordinator", "source", "complete 7"),
            Arrow("source", "count", "complete 7"),
            Arrow("count", "sink", "complete 7"),
        ],
    ),
}
MAP: Final = "map"
PANELS: Final = {
    "executors, many": (20, 44, 270, 150, ["subtask", "begin → write → pre_commit"]),
    "driver, one": (370, 44, 250, 150, ["coordinator", "admit → decide → commit"]),
    LOG: (730, 44, 200, 150, ["put-if-absent", "directory, SQL, object store"]),
    "external systems": (20, 268, 910, 74, ["Kafka transactions, PostgreSQL prepared transactions, renamed files, …"]),
}
"""Title, place, size and lines of each box on the map."""
ACROSS: Final = [
    (290, 370, 119, "handles", INK),
    (620, 730, 84, "START", INK),
    (620, 730, 124, "DECIDE", GOOD),
    (620, 730, 164, "COMPLETED", INK),
]
DOWN: Final = [(155, "rows, prepared but invisible"), (495, "commit or abort, by handle")]


def drawn(name: str) -> str:
    """The picture as SVG."""
    names, steps = PICTURES[name]
    at = {actor: EDGE + COLUMN * number for number, actor in enumerate(names)}
    width, height = 2 * EDGE + COLUMN * (len(names) - 1), TOP + ROW * len(steps) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect x="1" y="1" width="{width - 2}" height="{height - 2}" rx="8" fill="#ffffff" stroke="{FAINT}"/>',
    ]
    begun = dict.fromkeys(names, TOP - 18)
    for number, step in enumerate(steps):
        y = TOP + ROW * number + ROW // 2
        match step:
            case Crash(actor):
                parts.append(_life(at[actor], begun.pop(actor), y))
            case Restart(actor):
                begun[actor] = y
    parts += [_life(at[actor], y, height - 14) for actor, y in begun.items()]
    parts += [_box(at[actor], TOP - 34, actor, fill="#e6eefc", bold=True) for actor in names]
    parts += [_step(step, at, TOP + ROW * number + ROW // 2) for number, step in enumerate(steps)]
    return "\n".join([*parts, "</svg>\n"])


def drawn_map() -> str:
    """The map of ARCHITECTURE.md as SVG."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 950 360" width="950" height="360"',
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect x="1" y="1" width="948" height="358" rx="8" fill="#ffffff" stroke="{FAINT}"/>',
    ]
    for title, (x, y, width, height, lines) in PANELS.items():
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="#f7f9fc" stroke="{FAINT}"/>'
        )
        parts.append(_box(x + width // 2, y, title, fill="#e6eefc", bold=True))
        middle = y + (height + 26) // 2 - 10 * (len(lines) - 1)
        parts += [_text(x + width // 2, middle + 24 * n, line, INK, halo=False) for n, line in enumerate(lines)]
    for start, end, y, text, color in ACROSS:
        parts.append(f'<path d="M{start} {y}H{end - 8}" stroke="{color}" stroke-width="1.6"/>')
        parts.append(f'<path d="M{end} {y}l-9 -5v10z" fill="{color}"/>' + _text((start + end) // 2, y - 7, text, color))
    for x, text in DOWN:
        parts.append(f'<path d="M{x} 194V245" stroke="{INK}" stroke-width="1.6"/><path d="M{x} 254l-5 -9h10z"/>')
        parts.append(_text(x, 228, text, INK))
    return "\n".join([*parts, "</svg>\n"])


def _step(step: Step, at: dict[str, int], y: int) -> str:
    match step:
        case Arrow(start, end, text, color, refused):
            x, to = at[start], at[end]
            way = 1 if to > x else -1
            tip = to - way * (14 if refused else 2)
            head = (
                f'<path d="M{tip - 6} {y - 6}l12 12m0 -12l-12 12" stroke="{color}" stroke-width="2.5"/>'
                if refused
                else f'<path d="M{tip} {y}l{-way * 9} -5v10z" fill="{color}"/>'
            )
            line = f'<path d="M{x} {y}H{tip - way * 6}" stroke="{color}" stroke-width="1.6"/>'
            return line + head + _text((x + to) // 2, y - 7, text, color)
        case Note(actor, text, color):
            return _box(at[actor], y, text, fill=NOTE, color=color)
        case Crash(actor, text):
            cross = f'<path d="M{at[actor] - 9} {y - 9}l18 18m0 -18l-18 18" stroke="{BAD}" stroke-width="4"/>'
            return cross + _text(at[actor] + 42, y + 4, text, BAD)
        case Restart(actor, text):
            return _box(at[actor], y, text, fill="#e6eefc")


def _life(x: int, top: int, bottom: int) -> str:
    return f'<path d="M{x} {top}V{bottom}" stroke="{FAINT}" stroke-width="1.5"/>'


def _box(x: int, y: int, text: str, *, fill: str, color: str = INK, bold: bool = False) -> str:
    half = 4 * len(text) + 10
    box = f'<rect x="{x - half}" y="{y - 13}" width="{2 * half}" height="26" rx="5" fill="{fill}" stroke="{FAINT}"/>'
    return box + _text(x, y + 5, text, color, bold=bold, halo=False)


def _text(x: int, y: int, text: str, color: str, *, bold: bool = False, halo: bool = True) -> str:
    weight = ' font-weight="600"' if bold else ""
    behind = ' stroke="#ffffff" stroke-width="4" paint-order="stroke"' if halo else ""
    return f'<text x="{x}" y="{y}" fill="{color}" text-anchor="middle"{weight}{behind}>{escape(text)}</text>'


def main() -> None:
    """Write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(drawn(name))
    (FOLDER / f"{MAP}.svg").write_text(drawn_map())


if __name__ == "__main__":
    main()
