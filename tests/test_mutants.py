"""The list of mutants fits the code: each can be put in, says what is wrong, and names tests that are there."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import replace

import pytest

from .mutants.catalog import AREAS, ROOT, Mutant, MutantError, load
from .mutants.table import DOCUMENT

LEAST = 60
LEAST_OF_AN_AREA = 12


@pytest.fixture(scope="module")
def mutants() -> list[Mutant]:
    return load()


def test_each_mutant_can_be_put_into_the_code(mutants: list[Mutant]):
    """Those of a file that do not touch each other are read together, which is quicker."""
    for file in {mutant.file for mutant in mutants}:
        text = (ROOT / file).read_text()
        left = [mutant for mutant in mutants if mutant.file == file]
        assert [mutant.applied(text) for mutant in left]
        while left:
            changed, together, apart = text, [], []
            for mutant in left:
                if changed.count(mutant.before) == 1:
                    changed = mutant.applied(changed)
                    together.append(mutant.name)
                else:
                    apart.append(mutant)
            ast.parse(changed, f"{file} with {together}")
            left = apart


def test_there_are_enough_of_them_everywhere(mutants: list[Mutant]):
    counts = Counter(mutant.area for mutant in mutants)
    assert len(mutants) >= LEAST
    assert {area for area in AREAS if counts[area] >= LEAST_OF_AN_AREA} == set(AREAS)


def test_each_says_what_is_wrong_and_names_tests_that_are_there(mutants: list[Mutant]):
    """A test may be inherited from a contract or from the conformance suite."""
    files = [path for folder in ("tests", "testing") for path in (ROOT / folder).glob("*.py")]
    known = {name for path in files for name in re.findall(r"^ *(?:def|class) (\w+)", path.read_text(), re.MULTILINE)}
    for mutant in mutants:
        assert mutant.error.endswith(".")
        assert "|" not in mutant.name + mutant.error, "it would end a cell of the table"
        assert mutant.tests
        for test in mutant.tests:
            file, *names = test.split("::")
            assert (ROOT / file).is_file(), f"{mutant.name}: no {test}"
            assert known.issuperset(names), f"{mutant.name}: no {test}"


def test_the_table_is_of_this_list(mutants: list[Mutant]):
    """`make mutants` writes it, when all of them were caught."""
    listed = re.findall(r"^\| \*\*(.+?)\*\*: (.+?) \| `(.+?)` \|", (ROOT / DOCUMENT).read_text(), re.MULTILINE)
    assert listed == [(mutant.name, mutant.error, mutant.file) for mutant in mutants]


@pytest.mark.parametrize("text", ["x = 2\n", "x = 1\nx = 1\n"])
def test_lines_that_are_not_there_exactly_once_are_told(mutants: list[Mutant], text: str):
    mutant = replace(mutants[0], before="x = 1", after="x = 2")
    with pytest.raises(MutantError, match="times, not once"):
        mutant.applied(text)
    assert mutant.applied("x = 1\n") == "x = 2\n"
