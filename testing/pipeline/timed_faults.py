"""The faults that a pipeline is tested with, one per case, each at a moment that its seed decides.

A fault is a function of the scene: what it needs to hit, and dice. A user's own goes beside these:
`faults = {**FAULTS, "delete-cache": delete_cache}`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from onceward.core.kit.crash_points import CRASH_VARIABLE, Step

from .driver import DriverProcess, paused
from .endpoints import KAFKA, POSTGRES

if TYPE_CHECKING:
    import psutil

    from ..proxy import Proxy
    from .driver import DriverSupervisor
    from .endpoints import Addresses
    from .servers import Server


class NothingToHitError(Exception):
    """The fault does not apply to this pipeline: the case has shown no more than a clean run."""


class NotReachedError(Exception):
    """The fault applies to this pipeline, but the run was too short for it: the case fails unless it happens later."""


@dataclass
class Scene:
    """The processes and servers that a fault can hit.

    Attributes:
        supervisor: The driver and who starts it again.
        servers: The services that run, by system.
        addresses: Addresses of the servers and of the case's folder.
        dice: Seeded generator of random numbers.
        until: Time when rows cease to be fed, in seconds of time.monotonic().
        note: Keeps a line for the report.
        proxies: Proxies between the driver and each of the services, if the fault's name begins with `cut-`; else none.
    """

    supervisor: DriverSupervisor
    servers: Mapping[str, Server]
    addresses: Addresses
    dice: Random
    until: float
    note: Callable[[str], None]
    proxies: Mapping[str, Proxy] = field(default_factory=dict)


Inject: TypeAlias = Callable[[Scene], None]

_ANSWERS_ONLY: Final = 0.7
"""Share of the cuts whose requests still arrive: what was committed unheard must not be written again."""


def _clean(scene: Scene) -> None:
    pass


def _kill_driver(scene: Scene) -> None:
    scene.note("SIGKILL to the driver's process group")
    scene.supervisor.driver.kill()


@dataclass(frozen=True)
class _Part:
    """A kind of process of a driver, one of which is hit."""

    title: str
    find: Callable[[DriverProcess], list[psutil.Process]]

    def kill(self, scene: Scene) -> None:
        """Kill the chosen process (SIGKILL)."""
        chosen = self._choose(scene)
        scene.note(f"SIGKILL to {self.title} {chosen.pid}")
        chosen.kill()

    def pause(self, scene: Scene) -> None:
        """Stop the chosen process (SIGSTOP), and continue it after a while (SIGCONT)."""
        chosen = self._choose(scene)
        scene.note(f"{self.title} {chosen.pid} is paused (SIGSTOP)")
        with paused([chosen]):
            time.sleep(scene.dice.uniform(1.0, 4.0))
        scene.note(f"{self.title} {chosen.pid} goes on (SIGCONT)")

    def _choose(self, scene: Scene) -> psutil.Process:
        while time.monotonic() < scene.until:  # workers come and go
            found = self.find(scene.supervisor.driver)
            if found:
                return scene.dice.choice(sorted(found, key=lambda process: process.pid))
            time.sleep(0.01)
        raise NothingToHitError(f"the driver has no {self.title}")


_WORKER: Final = _Part("Python worker", DriverProcess.python_workers)
_JVM: Final = _Part("JVM", DriverProcess.jvms)


def _kill_server(system: str, scene: Scene) -> None:
    scene.note(f"SIGKILL to {system}")
    scene.servers[system].kill()
    time.sleep(scene.dice.uniform(0.2, 2.0))
    scene.servers[system].start_again()
    scene.note(f"{system} answers again")


def _pause_server(system: str, scene: Scene) -> None:
    scene.note(f"{system} is paused")
    scene.servers[system].pause()
    try:
        time.sleep(scene.dice.uniform(1.0, 5.0))
    finally:
        scene.servers[system].resume()
    scene.note(f"{system} goes on")


def _cut(system: str, scene: Scene) -> None:
    if system not in scene.proxies:
        raise NothingToHitError(f"the driver does not reach {system} through a proxy")
    proxy, requests = scene.proxies[system], scene.dice.random() < _ANSWERS_ONLY
    try:
        scene.note(f"network to {system}: {'answers' if requests else 'packets'} are lost")
        proxy.cut(requests=requests)
        time.sleep(scene.dice.uniform(0.5, 3.0))
        scene.note(f"network to {system}: connections are reset, new ones refused")
        proxy.refuse()
        time.sleep(scene.dice.uniform(0.2, 2.0))
    finally:
        proxy.mend()
    scene.note(f"network to {system}: as before")


def _pause_driver(scene: Scene) -> None:
    scene.note("the driver is paused (SIGSTOP)")
    with paused(scene.supervisor.driver.family()):
        time.sleep(scene.dice.uniform(1.0, 4.0))
    scene.note("the driver goes on (SIGCONT)")


def _second_driver(scene: Scene) -> None:
    scene.note("a second driver is started beside the first")
    scene.supervisor.start_another()


def _replace_paused_driver(scene: Scene) -> None:
    scene.note("the driver is paused (SIGSTOP), and another is started in its place")
    with paused(scene.supervisor.driver.family()):
        scene.supervisor.start_another()
        time.sleep(scene.dice.uniform(2.0, 6.0))
    scene.note("the first driver goes on beside it (SIGCONT)")


def _delete_newest_commit(scene: Scene) -> None:
    with scene.supervisor.down():
        files = [path for path in scene.addresses.folder.rglob("commits/*") if path.name.isdigit()]
        if not files:
            raise NothingToHitError("there is no Spark checkpoint with a completed batch in PIPELINE_FOLDER")
        newest = max(files, key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        scene.note(f"SIGKILL to the driver, and its checkpoint loses {newest.relative_to(scene.addresses.folder)}")


FAULTS: Final[Mapping[str, Inject]] = {
    "clean": _clean,
    "kill-driver": _kill_driver,
    "kill-worker": _WORKER.kill,
    "kill-jvm": _JVM.kill,
    "kill-kafka": partial(_kill_server, KAFKA),
    "kill-postgres": partial(_kill_server, POSTGRES),
    "cut-kafka": partial(_cut, KAFKA),
    "cut-postgres": partial(_cut, POSTGRES),
    "pause-driver": _pause_driver,
    "second-driver": _second_driver,
    "replace-paused-driver": _replace_paused_driver,
    "pause-worker": _WORKER.pause,
    "pause-jvm": _JVM.pause,
    "pause-kafka": partial(_pause_server, KAFKA),
    "pause-postgres": partial(_pause_server, POSTGRES),
    "delete-newest-commit": _delete_newest_commit,
}
"""The faults of every pipeline, by name."""

_NOT_IN_SMOKE: Final = frozenset({"pause-worker", "pause-jvm", "pause-kafka", "pause-postgres", "delete-newest-commit"})
_SMOKE_STEPS: Final = (Step.PRE_COMMIT_AFTER, Step.DECIDE_AFTER, Step.COMMIT_AFTER, Step.COMPLETE_BEFORE)
_AT_TIMES: Final = frozenset(
    {
        *(Step.LOG_DELETE_BEFORE, Step.LOG_DELETE_AFTER, Step.ABORT_BEFORE, Step.ABORT_AFTER, Step.ACKNOWLEDGED),
        *(Step.SWEEP_BEFORE, Step.SWEEP_AFTER, Step.SEND_BEFORE, Step.SEND_AFTER, Step.MARK_AFTER),
    }
)
"""Steps that a run need not pass: some sinks and drivers do not have them, or there is nothing to do."""
_ONCE: Final = frozenset({Step.START_BEFORE, Step.START_AFTER, Step.SWEEP_BEFORE, Step.SWEEP_AFTER})
"""Steps that a driver may pass only when it starts."""
_SEEDS: Final = {"smoke": 1, "full": 3, "hours": 100}


class PlannedFault(NamedTuple):
    """One fault of a case: what is injected, and when.

    Attributes:
        name: Name of the fault.
        seed: Decides the moment of the fault, and what it hits.
        inject: Function that injects the fault.
        environment: Variables of the driver's first life.
        moments: Share of the time in which rows are fed, from its beginning, within which the fault strikes.
    """

    name: str
    seed: int
    inject: Inject
    environment: Mapping[str, str] = {}
    moments: float = 0.8

    @property
    def id(self) -> str:
        """The name of the test's parameter."""
        return f"{self.name}-{self.seed}"

    @property
    def needs_proxies(self) -> bool:
        """Whether the driver is to reach its services through proxies, whose network it cuts."""
        return self.name.startswith("cut-")


CLEAN: Final = PlannedFault("clean", 1, _clean)


def planned_faults(
    level: str, faults: Mapping[str, Inject], needs: frozenset[str | None], *, steps: bool
) -> list[PlannedFault]:
    """Return the cases of a selection.

    Args:
        level: "smoke": each fault once; "full": more faults, three seeds; "hours": a hundred seeds.
        faults: Faults to choose from, by name; one that is named after a system, `kill-kafka`, only where `needs` has
            it.
        needs: The systems that the pipeline uses.
        steps: True to crash at onceward's durable steps, too.
    """
    smoke = level == "smoke"
    other = {KAFKA, POSTGRES} - needs
    names = [name for name in faults if not (smoke and name in _NOT_IN_SMOKE)]
    names = [name for name in names if name.rpartition("-")[2] not in other]
    chosen = (_SMOKE_STEPS if smoke else tuple(Step)) if steps else ()
    return [
        *(PlannedFault(name, seed, faults[name]) for seed in range(1, _SEEDS[level] + 1) for name in names),
        *(_crash_at(step, seed) for seed in range(1, _SEEDS[level] + 1) for step in chosen),
    ]


def _crash_at(step: Step, seed: int) -> PlannedFault:
    count = 1 if step in _ONCE else Random(f"{step}-{seed}").randint(1, 3)  # noqa: S311 - repeatable on purpose
    often = "" if count == 1 else f" {count} times"

    def wait(scene: Scene) -> None:
        while not scene.supervisor.exit_codes:
            if time.monotonic() > scene.until and step in _AT_TIMES:
                raise NothingToHitError(f"the driver did not pass the step {step}{often}")
            if time.monotonic() > scene.until:
                raise NotReachedError(
                    f"the driver did not crash, because it did not pass the step {step}{often}. Raise feed_seconds "
                    "(and row_count), or shorten the driver's trigger, so that it has more epochs while rows are fed; "
                    "set uses_onceward = False if it does not write through onceward"
                )
            time.sleep(0.05)
        scene.note(f"SIGKILL by itself at step {step} (pass {count})")

    return PlannedFault(f"crash-at-{step}", seed, wait, {CRASH_VARIABLE: f"{step}:{count}"})
