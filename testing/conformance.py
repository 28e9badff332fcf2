"""Every sink's exam: subclass SinkConformance, give one fixture, and pytest runs the cases that apply.

    from onceward.testing.conformance import SinkConformance, Subject

    class TestMySink(SinkConformance):
        @pytest.fixture
        def subject(self, tmp_path):
            return Subject(make=lambda: MySink("mine", tmp_path), read=lambda: numbers_in(tmp_path))

The numbers in the tests' names are those of the project's list of a hundred scenarios. Each test works under a
pipeline name of its own and with row numbers of its own, so one target serves all of them. What does not apply to a
sink is skipped, and reported by name and reason at the end (plugin.py). A source's exam is in source_cases.py.
"""

from __future__ import annotations

import pytest

from .exam import Exam, Subject
from .fault_cases import FaultCases
from .protocol_cases import ProtocolCases
from .source_cases import SourceConformance, SourceSubject

__all__ = ["Exam", "SinkConformance", "SourceConformance", "SourceSubject", "Subject"]


class SinkConformance(ProtocolCases, FaultCases):
    """Subclass it, and give the fixture `subject`."""

    @pytest.fixture
    def subject(self) -> Subject:
        """What is examined."""
        raise NotImplementedError("give the fixture `subject`, which returns a Subject")

    @pytest.fixture
    def exam(self, subject: Subject) -> Exam:
        """A pipeline of its own for each test."""
        return Exam(subject)
