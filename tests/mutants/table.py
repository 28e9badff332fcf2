"""The table of what catches what: README.md of this folder."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from .catalog import AREAS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .catalog import Mutant

DOCUMENT = PurePath("tests", "mutants", "README.md")
_HEAD = """# Mutants

Each row is an error that the protocol must not have. `make mutants` puts one after another into a copy of the code
and runs the fast tests (`tests/`, without those marked `slow`) until one fails. A mutant that no test catches fails the
run. This table is written by a run in which all were caught; the last column names the test that failed first.

```bash
make mutants                                  # all, with two workers
make mutants ARGS='--only "busy counts"'      # those whose name holds these words
make mutants ARGS='--area kafka --named'      # one area, without falling back on all fast tests
```

The list is in `tests/mutants/`, one TOML file for each area. A mutant is a name, one sentence on the error, a file, the
lines that are there now (exactly once) and those that take their place, and the tests that should catch it, which are
run first. `tests/test_mutants.py` fails when lines have changed so that a mutant no longer fits, and when this table is
not of the list. A new mechanism of the protocol gets a mutant for each way in which it could be missing or wrong, but
none that changes nothing, and none that every test would notice.

| area | mutants |
|---|---|
"""


def document(mutants: Sequence[Mutant], caught: Mapping[str, str]) -> str:
    """The table.

    Args:
        mutants: All of them.
        caught: The test that caught each, by name.
    """
    parts = [_HEAD]
    parts += [f"| {title} | {_count(mutants, area)} |\n" for area, title in AREAS.items()]
    parts.append(f"| all | {len(mutants)} |\n")
    for area, title in AREAS.items():
        parts.append(f"\n## {title}\n\n| error | in | caught by |\n|---|---|---|\n")
        parts += [_row(mutant, caught[mutant.name]) for mutant in mutants if mutant.area == area]
    return "".join(parts)


def _count(mutants: Sequence[Mutant], area: str) -> int:
    return sum(mutant.area == area for mutant in mutants)


def _row(mutant: Mutant, test: str) -> str:
    file, _, name = test.partition("::")
    shown = name.replace("::", ": ").replace("_", " ")
    return f"| **{mutant.name}**: {mutant.error} | `{mutant.file}` | `{file}`: {shown} |\n"
