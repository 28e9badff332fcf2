"""The faults of the scoreboard: the kit's smoke selection, and kills in the window that matters.

That window lies between the moment when readers see output and the moment when the pipeline has recorded that it was
written. It is hit from outside and in the same way for everybody: a watcher kills the driver as soon as readers see a
change, again and again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onceward.testing.pipeline import FAULTS, NothingToHitError
from onceward.testing.pipeline.timed_faults import Inject, PlannedFault, planned_faults

from .table import RECOVERY_SECONDS
from .watch import wait_for_growth

if TYPE_CHECKING:
    from onceward.testing.pipeline import Scene

    from .watch import Watch

WINDOW = "kill-when-visible"
KILL_SECONDS = 75.0
"""For which rows are fed where the driver is killed again and again."""


@dataclass
class Injected:
    """What was done in a case.

    Attributes:
        count: Number of faults.
        recoveries: Seconds from a fault until readers saw something new.
    """

    count: int = 0
    recoveries: list[float] = field(default_factory=list)

    def recovered(self, watches: list[Watch], began: float) -> bool:
        """Wait for new output after a fault."""
        if not wait_for_growth(watches, began + RECOVERY_SECONDS):
            return False
        self.recoveries.append(time.monotonic() - began)
        return True


def counted(fault: Inject, injected: Injected, watches: list[Watch]) -> Inject:
    """Wrap a fault of the kit, and measure the time until readers see something new."""

    def inject(scene: Scene) -> None:
        began = time.monotonic()
        fault(scene)
        injected.count += 1
        injected.recovered(watches, began)

    return inject


def kill_when_visible(injected: Injected, watches: list[Watch]) -> Inject:
    """SIGKILL up to 20 ms after readers of one of the outputs have seen a change, until no more rows are fed."""

    def inject(scene: Scene) -> None:
        while wait_for_growth([scene.dice.choice(watches)], scene.until):
            time.sleep(scene.dice.uniform(0, 0.02))
            scene.note("SIGKILL to the driver's process group, right after output became visible")
            began = time.monotonic()
            scene.supervisor.driver.kill()
            injected.count += 1
            time.sleep(0.3)  # readers see what was there before the kill
            if not injected.recovered(watches, began):
                return
            for _ in range(scene.dice.randrange(2)):  # not always the first output of a life
                time.sleep(0.2)
                wait_for_growth(watches, scene.until)
        if not injected.count:
            raise NothingToHitError("nothing became visible while rows were fed")

    return inject


def planned(needs: frozenset[str | None], kills: int) -> list[PlannedFault]:
    """Return the cases of a contestant: so many series of kills, then the kit's smoke selection."""
    series = [PlannedFault(WINDOW, seed, FAULTS["kill-driver"], moments=0.0) for seed in range(1, kills + 1)]
    return [*series, *planned_faults("smoke", FAULTS, needs, steps=False)]


def armed(fault: PlannedFault, injected: Injected, watches: list[Watch]) -> PlannedFault:
    """Return the fault with the watchers of a case."""
    if fault.name == WINDOW:
        return fault._replace(inject=kill_when_visible(injected, watches))
    if fault.name == "clean":
        return fault
    return fault._replace(inject=counted(fault.inject, injected, watches))
