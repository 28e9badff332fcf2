"""A Spark query is taken over, and hands over: what the program sees of it, and what a mistake must not do."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import pytest

from onceward.connectors.spark.classic import INTERRUPTED
from onceward.connectors.spark.warm import warm_up


class OwnSession:
    """The program's session, whose streams the program awaits; it counts the sessions that were made beside it."""

    def __init__(self) -> None:
        self.others = 0

    @property
    def readStream(self) -> NoReturn:  # noqa: N802 - Spark's name
        raise AssertionError("a query that ends here makes awaitAnyTermination return at once")

    def newSession(self) -> Any:  # noqa: N802 - Spark's name
        self.others += 1
        raise RuntimeError("there is no JVM, and warming up fails nothing")


def test_a_session_is_warmed_up_by_a_query_that_the_program_does_not_see() -> None:
    spark: Any = OwnSession()
    warm_up(spark, [object()])
    assert spark.others == 1


@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_a_query_that_was_stopped_while_it_waited_has_not_failed_in_any_version_of_spark(version: str) -> None:
    between = {"3.5": r".+(\r\n|\r|\n): ", "4.0": r"((.|\r\n|\r|\n)*)"}[version]  # StreamExecution.PROXY_ERROR
    pattern = f"py4j.protocol.Py4JJavaError: An error occurred while calling{between}(java.lang.InterruptedException)"
    assert re.search(pattern, f"Traceback (most recent call last):\n  ...\nStoppedError: {INTERRUPTED}\n")
