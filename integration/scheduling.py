"""Which tests one worker runs without a break, and which are run when: from `durations.toml`."""

from __future__ import annotations

import fnmatch
import os
import re
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

HERE = Path(__file__).parent
_DURATIONS: Final = tomllib.loads((HERE / "durations.toml").read_text())
SECONDS: Final[dict[str, int]] = _DURATIONS["seconds"]
NIGHTLY: Final = frozenset(_DURATIONS["nightly"])
_BY_CI: Final = re.compile("|".join(fnmatch.translate(f"{glob.replace('[', '[[]')}*") for glob in _DURATIONS["by_ci"]))
_GROUPS: Final = {member: group for group, members in _DURATIONS["together"].items() for member in members}


UNTIL: Final = "ONCEWARD_TESTS_UNTIL"
"""Variable with seconds since 1970: no test begins later."""


def is_left_to_ci(test: str) -> bool:
    """Return whether `.ci/run` and `make test-all` run the test, and `make test` does not."""
    return _BY_CI.match(test) is not None


def scope_of(test: str) -> str:
    """What one worker runs without a break: a class, or the functions of a module, or of several; or a test alone.

    A test runs alone if `durations.toml` names it, and each unit test does: they share no services.
    """
    if test in SECONDS or test.startswith("tests/"):
        return test
    return _GROUPS.get(test) or _GROUPS.get(test.partition("::")[0]) or test.rpartition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Leave the test out if no time is left; one that runs already may end."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip("no time was left for it")


class ByScope(LoadScopeScheduling):
    """Gives scopes to workers, and to one that replaces a worker which died, too."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        """Give the worker work, and tell it what follows, without which it does not begin its last test.

        Each worker begins with two units of work, but one that comes later with one: if that is one test, and the last
        one, or one that the dead worker had done, both would wait for each other (pytest-xdist 3.8).
        """
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByScope | None:
    """Schedule by scope, if `--dist loadscope` says so."""
    return ByScope(config, log) if config.option.dist == "loadscope" else None
