"""The conformance suite for sinks: subclass SinkConformance, give one fixture, and pytest runs the cases that apply.

    from onceward.testing.conformance import SinkConformance, SinkUnderTest

    class TestMySink(SinkConformance):
        @pytest.fixture
        def sink_under_test(self, tmp_path):
            return SinkUnderTest(make=lambda: MySink("mine", tmp_path), read=lambda: numbers_in(tmp_path))

The numbers in the tests' names are those of the project's list of a hundred scenarios. Each test works under a
pipeline name of its own and with row numbers of its own, so one target serves all of them. What does not apply to a
sink is skipped, and reported by name and reason at the end (plugin.py). The suite for sources is in source_cases.py.
"""

from __future__ import annotations

import pytest

from .fault_cases import FaultCases
from .protocol_cases import ProtocolCases
from .sink_case import SinkCase, SinkUnderTest
from .source_cases import SourceConformance, SourceUnderTest

__all__ = ["SinkCase", "SinkConformance", "SinkUnderTest", "SourceConformance", "SourceUnderTest"]


class SinkConformance(ProtocolCases, FaultCases):
    """Subclass it, and give the fixture `sink_under_test`."""

    @pytest.fixture
    def sink_under_test(self) -> SinkUnderTest:
        """What is tested."""
        raise NotImplementedError("give the fixture `sink_under_test`, which returns a SinkUnderTest")

    @pytest.fixture
    def case(self, sink_under_test: SinkUnderTest) -> SinkCase:
        """A pipeline of its own for each test."""
        return SinkCase(sink_under_test)
