"""The table of what shows what, from tests/scenarios.toml and the tests' names.

    python -m tests.scenarios                    # prints the table
    python -m tests.scenarios --before FOLDER    # what an older checkout in FOLDER tested and this one does not

A test shows a scenario whose number is in its name (`test_40_41_and_43_…`, `test_09_to_15_and_88_…`) or that its own
docstring cites ("Scenario 92."). A module whose docstring cites scenarios is listed beside them, but is not enough.
Nothing is imported: the sources are parsed, so that the table is the same wherever it is made.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parent.parent
SCENARIOS = range(1, 101)
SUITES = ("SinkConformance", "SourceConformance")
_PLACES = ("tests", "integration", "testing", "examples", "connectors/testing")
_NUMBERS_OF_A_NAME = re.compile(r"test_(\d{1,3}(?:_(?:and_|to_)?\d{1,3})*)_(?!\d)")
_CITED = re.compile(r"\bscenarios? (\d+(?:(?:,| to| and|,? and) \d+)*)", re.IGNORECASE)
_HEAD = """# Scenarios, conformance cases and promises, and the tests that show them

From `tests/scenarios.toml` and the tests' names; `tests/test_scenarios.py` fails when a scenario has no test, or when a
promise is no longer in the documentation or loses a test. A test's name says the numbers of the scenarios that it
shows. Tests in `testing/` are the conformance suite, which runs against each sink and source in the second table.
"""


@dataclass(frozen=True)
class Case:
    """A test function, with the scenarios that it shows."""

    file: str
    name: str
    scenarios: frozenset[int]

    @property
    def in_the_suite(self) -> bool:
        """Whether it is a case of the conformance suite."""
        return Path(self.file).parent.name == "testing"


@dataclass(frozen=True)
class Promise:
    """A sentence of the documentation, and the tests or test classes that show that it is kept."""

    page: str
    says: str
    tests: tuple[str, ...]


@dataclass
class Collected:
    """Everything that the sources of a checkout say about its tests."""

    functions: list[Case] = field(default_factory=list)
    modules: dict[str, frozenset[int]] = field(default_factory=dict)
    classes: list[tuple[str, str, str]] = field(default_factory=list)  # file, name, base

    def of(self, scenario: int) -> list[Case]:
        """The tests that show it."""
        return [test for test in self.functions if scenario in test.scenarios]

    def cases(self) -> list[Case]:
        """The conformance suite."""
        return [test for test in self.functions if test.in_the_suite]

    def files_of(self, name: str) -> list[str]:
        """Where a test function or a test class with a base is."""
        found = [test.file for test in self.functions if test.name == name]
        return found + [file for file, known, _ in self.classes if known == name]


def collect(root: Path = ROOT) -> Collected:
    """Parse every test of a checkout."""
    tests = Collected()
    for place in _PLACES:
        for path in sorted((root / place).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            tree = ast.parse(path.read_text())
            tests.modules[file] = frozenset(_cited(ast.get_docstring(tree)))
            tests.functions += _functions(file, tree)
            tests.classes += _classes(file, tree)
    return tests


def laws() -> dict[int, str]:
    """What holds in each scenario, by its number."""
    return {int(number): law for number, law in _toml()["scenarios"].items()}


def promises() -> list[Promise]:
    """What the documentation promises."""
    return [Promise(each["page"], each["says"], tuple(each["tests"])) for each in _toml()["promise"]]


def document(tests: Collected) -> str:
    """The page."""
    parts = [_HEAD, "\n## Scenarios\n\n| | what holds | shown by |\n|---|---|---|\n"]
    parts += [f"| {number} | {law} | {_shown_by(tests, number)} |\n" for number, law in laws().items()]
    parts.append("\n## Conformance cases\n\n| suite | cases | run by |\n|---|---|---|\n")
    for suite in SUITES:
        cases = [case.name for case in tests.cases() if ("source" in case.file) == (suite == "SourceConformance")]
        runs = [f"`{file}`: {name}" for file, name, of in tests.classes if of == suite]
        parts.append(f"| `{suite}` | {'<br>'.join(_words(case) for case in cases)} | {'<br>'.join(runs)} |\n")
    parts.append("\n## Promises\n\n| page | promise | shown by |\n|---|---|---|\n")
    for promise in promises():
        shown = sorted({(file, _words(name)) for name in promise.tests for file in tests.files_of(name)})
        parts.append(f"| {Path(promise.page).name} | {_cell(promise.says)} | {_listed(shown)} |\n")
    return "".join(parts)


def lost_since(before: Collected, now: Collected) -> list[str]:
    """What an older state of the tests shows more often, and the numbered tests whose names are gone."""
    fewer = [
        f"scenario {number}: {len(before.of(number))} tests before, {len(now.of(number))} now"
        for number in SCENARIOS
        if len(now.of(number)) < len(before.of(number))
    ]
    names = {test.name for test in now.functions}
    gone = [test for test in before.functions if (test.scenarios or test.in_the_suite) and test.name not in names]
    return fewer + [f"no longer there under this name: {test.file}::{test.name}" for test in gone]


def _toml() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def _functions(file: str, tree: ast.Module) -> Iterator[Case]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            named = _NUMBERS_OF_A_NAME.match(node.name)
            numbers = set(_range(named[1].replace("_", " "))) if named else set()
            yield Case(file, node.name, frozenset(numbers | set(_cited(ast.get_docstring(node)))))


def _classes(file: str, tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            yield from ((file, node.name, base) for base in sorted(bases))


def _cited(text: str | None) -> Iterator[int]:
    for numbers in _CITED.findall(text or ""):
        yield from _range(numbers)


def _range(text: str) -> Iterator[int]:
    """Numbers of "9 to 15 and 88"."""
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
        yield from (number for number in range(int(first), int(last or first) + 1) if number in SCENARIOS)


def _shown_by(tests: Collected, number: int) -> str:
    shown = [(test.file, _words(test.name)) for test in tests.of(number)]
    files = {file for file, _ in shown}
    shown += [(file, "") for file, cited in tests.modules.items() if number in cited and file not in files]
    return _listed(shown)


def _listed(shown: Iterable[tuple[str, str]]) -> str:
    files: dict[str, list[str]] = {}
    for file, words in shown:
        files.setdefault(file, []).append(words)
    return "<br>".join(f"`{file}`" + (": " if any(words) else "") + "; ".join(words) for file, words in files.items())


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("](", "] (")


def main() -> None:
    """Print the table, or compare with an older checkout."""
    parser = argparse.ArgumentParser(description="The table of scenarios, conformance cases and promises.")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="an older checkout to compare with")
    before = parser.parse_args().before
    print(document(collect()) if before is None else "\n".join(lost_since(collect(before), collect())))  # noqa: T201 - a command


if __name__ == "__main__":
    main()
