"""The list of mutants: one TOML file for each area, with a replacement of text for each error."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
AREAS = {
    "core": "core: decision log, coordinator, commit, sweep, engine",
    "kafka": "Kafka: pool of ids, commit by handle, sweep",
    "database": "Databases: prepared transactions, staging, ledger",
    "spark": "Spark: exactly_once, formats, batches",
}


class MutantError(Exception):
    """A mutant does not fit the code."""


@dataclass(frozen=True)
class Mutant:
    """One error.

    Attributes:
        area: One of AREAS.
        name: Short and unique.
        error: What is wrong, in a sentence.
        file: Which file has it.
        before: Lines of that file, which it has exactly once.
        after: What stands in their place.
        tests: Files or tests that should catch it; they are run first.
    """

    area: str
    name: str
    error: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The file's text with the error in it.

        Raises:
            MutantError: The lines are not there exactly once, or the error changes nothing.
        """
        found = text.count(self.before)
        if found != 1:
            raise MutantError(f"{self.name}: its lines are in {self.file} {found} times, not once")
        if self.before == self.after:
            raise MutantError(f"{self.name}: it changes nothing")
        return text.replace(self.before, self.after)


def load() -> list[Mutant]:
    """All mutants, in the order of areas and files.

    Raises:
        MutantError: Two have the same name.
    """
    found: list[Mutant] = []
    for area in AREAS:
        entries = tomllib.loads((FOLDER / f"{area}.toml").read_text())["mutant"]
        found += [Mutant(area=area, **{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    names = [mutant.name for mutant in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MutantError(f"two mutants are called {twice}")
    return found
