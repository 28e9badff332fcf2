"""The pytest plugin: at the end of a run it lists the conformance suite's cases that do not apply, by name and reason.

Installed with onceward; the suite itself is a class to subclass (conformance.py).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import pytest

NOT_APPLICABLE: Final = "not applicable: "

pytest.register_assert_rewrite(*(f"onceward.testing.{name}" for name in ("sink_case", "conformance", "source_cases")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what does not apply, by sink and reason."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _, mark, reason = words.partition(NOT_APPLICABLE)
        if mark:
            where, _, case = report.nodeid.rpartition("::")
            found[where, reason].append(case)
    if not found:
        return
    terminalreporter.section("cases of the conformance suite that do not apply")
    for (where, reason), cases in sorted(found.items()):
        terminalreporter.write_line(f"{where}: {reason}")
        for case in sorted(cases):
            terminalreporter.write_line(f"  {case}")
