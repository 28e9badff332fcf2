"""The pytest plugin: the option and the servers of pipeline tests, and a list of the cases that do not apply.

Installed with onceward; the suites themselves are classes to subclass (conformance.py, pipeline/).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .pipeline.servers import Servers

NOT_APPLICABLE: Final = "not applicable: "

_SUITES: Final = (
    *("sink_case", "conformance", "connector_cases", "source_cases"),
    *("direct_cases", "neighbor_cases", "row_cases", "target_cases", "trace_cases"),
)
pytest.register_assert_rewrite(*(f"onceward.testing.{name}" for name in _SUITES))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--faults`, for `onceward.testing.pipeline`."""
    group = parser.getgroup("onceward", "onceward.testing.pipeline")
    group.addoption(
        "--faults",
        choices=("smoke", "full", "hours"),
        default="smoke",
        help="faults that pipelines are tested with: each once (smoke, the default), three seeds of more, a hundred",
    )


@pytest.fixture(scope="session")
def pipeline_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Provide Kafka and PostgreSQL for pipeline tests, each started when it is first needed."""
    from .pipeline.servers import Servers  # noqa: PLC0415 - pytest loads this module in every run

    servers = Servers(tmp_path_factory.mktemp("pipeline-servers"))
    yield servers
    servers.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List tests that do not apply, by sink and reason."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", []):
        words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _, mark, reason = words.partition(NOT_APPLICABLE)
        if mark:
            where, _, case = report.nodeid.rpartition("::")
            found[where, reason].append(case)
    if not found:
        return
    terminalreporter.section("cases that do not apply")
    for (where, reason), cases in sorted(found.items()):
        terminalreporter.write_line(f"{where}: {reason}")
        for case in sorted(cases):
            terminalreporter.write_line(f"  {case}")
