"""End-to-end exactly-once tests of anybody's pipeline: the driver is a program, whatever it is written with.

    from onceward.testing.pipeline import KafkaTopic, PipelineTest, Table

    class TestOrders(PipelineTest):
        command = [sys.executable, "driver.py"]
        inputs = KafkaTopic("orders", partitions=3)
        outputs = [KafkaTopic("big"), Table("big_orders", "id bigint, amount bigint")]

        def row(self, number):
            return {"id": number, "amount": number % 100}

        def expected(self, rows):
            return [row for row in rows if row["amount"] >= 50]

Each fault is one case (timed_faults.py); `pytest --faults smoke|full|hours` selects them. What a case does: case.py.
"""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NoReturn

from onceward.core.operations.comparison import Record, Row

from .case import Case
from .endpoints import Addresses, Custom, Endpoint, Folder, KafkaTopic, Table, UnreadableError
from .spec import PipelineSpec
from .timed_faults import CLEAN, FAULTS, NothingToHitError, PlannedFault, Scene, planned_faults

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from .servers import Servers
    from .spec import ReferenceRun

__all__ = [
    "FAULTS",
    "Addresses",
    "Custom",
    "Endpoint",
    "Folder",
    "KafkaTopic",
    "NothingToHitError",
    "PipelineTest",
    "Record",
    "Row",
    "Scene",
    "Table",
    "UnreadableError",
]

_REFERENCE_RUNS: Final[dict[type[PipelineTest], ReferenceRun]] = {}


class PipelineTest(PipelineSpec):
    """Test a pipeline's driver program: subclass it, and set the attributes of PipelineSpec."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one case for each fault of the selection that `--faults` names."""
        if "fault" in metafunc.fixturenames:
            level = metafunc.config.getoption("--faults")
            needs = frozenset(endpoint.needs for endpoint in [*self.endpoints("inputs"), *self.endpoints("outputs")])
            planned = planned_faults(level, self.faults, needs, steps=self.uses_onceward)
            metafunc.parametrize("fault", planned, ids=lambda fault: fault.id)

    def test_exactly_once(
        self, fault: PlannedFault, pipeline_servers: Servers, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        """Check that each row takes effect exactly once in every output, whatever fails, and nothing is left open."""
        import pytest  # noqa: PLC0415 - the demo uses the other parts of the kit without it

        from ..plugin import NOT_APPLICABLE  # noqa: PLC0415

        def failed(case: Case, problem: str) -> NoReturn:
            pytest.fail(f"{problem}\n\n{case.report()}\nrepeat it: {repeat}", pytrace=False)

        repeat = f"pytest {shlex.quote(request.node.nodeid)} --faults {request.config.getoption('--faults')}"
        if self.reference_run and type(self) not in _REFERENCE_RUNS:
            with ExitStack() as stack:
                folder = request.getfixturevalue("tmp_path_factory").mktemp("reference")
                case = Case(self, CLEAN, pipeline_servers, folder, stack)
                found, problem = case.record()
                if found is None:
                    failed(case, problem)
                _REFERENCE_RUNS[type(self)] = found
        with ExitStack() as stack:
            case = Case(self, fault, pipeline_servers, tmp_path, stack, reference=_REFERENCE_RUNS.get(type(self)))
            problem = case.run()
            if problem:
                failed(case, problem)
            if case.nothing_hit:
                pytest.skip(f"{NOT_APPLICABLE}{case.nothing_hit}")
