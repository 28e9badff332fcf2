"""The pytest plugin: the option and the servers of pipeline tests, a list of the cases that do not apply, a checklist.

Installed with onceward; the suites themselves are classes to subclass (conformance.py, pipeline/).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .pipeline.servers import Servers

NOT_APPLICABLE: Final = "not applicable: "

MANY: Final = 12
"""So many cases that do not apply for one reason are counted, and not named."""
_NOT_SHOWN: Final = {
    "kill": "that nothing is lost or doubled when the process is killed, at any line of the sink",
    "restart": "that what is prepared and committed survives a restart of the target",
    "proxy": "how the sink answers when the target fails inside of a call: RETRY_LATER, and never a loss",
    "delete_prepared": "that prepared rows which somebody deleted are a loud loss",
    "take_away": "that committed rows which a reader removed are not called lost",
    "read_rows": "that all columns of a row are visible as they were written",
    "columns": "that values which are easily lost are visible as they were written",
    "ordered": "that the rows of a subtask keep their order",
    "refused": "that rows which the target refuses fail the epoch before the decision",
    "misfit": "that a schema which the target cannot take is refused at the start",
    "hasty": "that a transaction which the target ended by itself is a loud loss",
    "secret": "that no error, log line or text form of the sink shows its password",
}
"""Optional fields of SinkUnderTest, and what is not shown without them."""

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
    """List tests that do not apply, by sink and reason, and what was not shown of each sink."""
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
        for case in sorted(cases) if len(cases) < MANY else [f"{len(cases)} cases"]:
            terminalreporter.write_line(f"  {case}")
    _write_checklist(terminalreporter, found)


def _write_checklist(terminalreporter: pytest.TerminalReporter, reasons: Iterable[tuple[str, str]]) -> None:
    """Write what the author of each sink could still give, and what it would show."""
    missing: dict[str, dict[str, None]] = defaultdict(dict)
    for where, reason in reasons:
        name = re.match(r"(?:no )?SinkUnderTest\.(\w+)", reason)
        if name is not None and name[1] in _NOT_SHOWN:
            missing[where][name[1]] = None
    if not missing:
        return
    terminalreporter.section("checklist for the author: what was not shown")
    for where, names in sorted(missing.items()):
        terminalreporter.write_line(where)
        for name in sorted(names):
            terminalreporter.write_line(f"  [ ] {name} is not given: {_NOT_SHOWN[name]}")
