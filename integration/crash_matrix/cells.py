"""The cells of the matrix, and the order in which they are gone through."""

from __future__ import annotations

import itertools
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.kit.crash_points import Step

from .drivers import Style
from .targets import COMBINATIONS, DELIVERED, ON_MARIADB, Kind
from .trap import Death, Strike

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

IN_ONE_PIPELINE: Final = 20
"""Cases that a pipeline and its targets serve, one after another."""
BROKER_SHARE: Final = 0.25
"""Of the cells in which the broker is killed: it takes seconds to come back."""
TWICE_SHARE: Final = 0.2
"""Of the cases in which an earlier driver has died before, so that the step is often one of recovery."""
_BEFORE: Final = (Step.PRE_COMMIT_AFTER, Step.DECIDE_AFTER, Step.COMMIT_BEFORE, Step.COMMIT_AFTER)
_ABORTS: Final = (Step.ABORT_BEFORE, Step.ABORT_AFTER)
_DELIVERIES: Final = (Step.SEND_BEFORE, Step.SEND_AFTER, Step.MARK_AFTER)
_POSTGRES: Final = {Kind.PREPARED, Kind.STAGING}
_LOCAL: Final = {Kind.FILES, Kind.SQLITE}


class Cell(NamedTuple):
    """One cell."""

    style: Style
    combination: str
    step: Step
    death: Death


class Case(NamedTuple):
    """One pass of a cell.

    Attributes:
        name: The same for the same seed.
        cell: The last strike is this cell's.
        strikes: What happens, in order.
    """

    name: str
    cell: Cell
    strikes: tuple[Strike, ...]


def cells(styles: Iterable[Style] = Style) -> list[Cell]:
    """All cells; a format writes into one sink."""
    return [
        Cell(style, name, step, death)
        for style in styles
        for name, kinds in COMBINATIONS.items()
        if style is not Style.FORMAT or len(kinds) == 1
        for step in Step
        if step not in _DELIVERIES or DELIVERED & set(kinds)
        for death in Death
        if _applies(death, set(kinds))
    ]


def _applies(death: Death, kinds: set[Kind]) -> bool:
    return {
        Death.CUT: bool(kinds - _LOCAL),
        Death.KAFKA: Kind.KAFKA in kinds,
        Death.POSTGRES: bool(kinds & _POSTGRES),
        Death.MARIADB: bool(kinds & ON_MARIADB),
        Death.VALKEY: Kind.WAL in kinds,
    }.get(death, True)


def series(seed: int, style: Style, sinks: Collection[str] = COMBINATIONS) -> Iterator[list[Case]]:
    """Cases without end, in groups of one combination; each cell comes once before one comes twice.

    Args:
        seed: Of the campaign.
        style: Of all cases.
        sinks: Combinations whose cases are yielded; which these are does not change a case or its name.
    """
    dice, number, everything = Random(f"{seed} {style}"), 0, cells([style])
    while True:
        groups: list[list[Case]] = []
        for name in COMBINATIONS:
            mine = [cell for cell in everything if cell.combination == name]
            mine = [cell for cell in mine if cell.death is not Death.KAFKA or dice.random() < BROKER_SHARE]
            dice.shuffle(mine)
            cases = [Case("", cell, _strikes(cell, dice)) for cell in mine]
            groups += [cases[first : first + IN_ONE_PIPELINE] for first in range(0, len(cases), IN_ONE_PIPELINE)]
        dice.shuffle(groups)
        for group in groups:
            if group[0].cell.combination in sinks:
                yield [case._replace(name=f"{style}-{number + place}") for place, case in enumerate(group)]
            number += len(group)


def campaign(seed: int, styles: Sequence[Style], sinks: Collection[str] = COMBINATIONS) -> Iterator[list[Case]]:
    """The groups of several styles in turns; the engine, whose kills are cheap, has two turns of each other one."""
    others = [style for style in styles if style is not Style.ENGINE]
    turns = [turn for style in others for turn in (Style.ENGINE, style) if turn in styles] or [Style.ENGINE]
    each = {style: series(seed, style, sinks) for style in styles}
    for style in itertools.cycle(turns):
        yield next(each[style])


def _strikes(cell: Cell, dice: Random) -> tuple[Strike, ...]:
    nth = dice.choice((1, 1, 2))
    if cell.step in _ABORTS:  # so that there is something to abort
        return Strike(Step.PRE_COMMIT_AFTER, nth, Death.KILL), Strike(cell.step, 1, cell.death)
    twice = dice.random() < TWICE_SHARE
    before = dice.choice(_BEFORE)
    return (*([Strike(before, 1, Death.KILL)] if twice else []), Strike(cell.step, nth, cell.death))
