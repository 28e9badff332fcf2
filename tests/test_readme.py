"""README's programs are the files of examples/, and what the docs list is what there is; integration/ runs README."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
GETTING_STARTED = (ROOT / "docs" / "getting-started.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#([\w-]+))?\)")


@pytest.mark.parametrize(
    "block", [*BLOCK.finditer(README), *BLOCK.finditer(GETTING_STARTED)], ids=lambda block: block[1].partition("\n")[0]
)
def test_a_program_is_the_file_that_is_linked_before_it(block: re.Match[str]) -> None:
    file = re.findall(r"\]\((?:\.\./)?(examples/\w+\.py)\)", block.string[: block.start()])[-1]
    assert block[1] == (ROOT / file).read_text()


def test_the_custom_sink_has_as_many_lines_as_is_said() -> None:
    lines = (ROOT / "examples" / "custom_sink.py").read_text().splitlines()
    assert re.findall(r"(\d+) lines", README) == [str(len(lines))] * 2


def test_every_extra_is_listed_and_no_other() -> None:
    rows = re.search(r"\| extra \| for \|\n\|---\|---\|\n((?:\|.*\n)+)", README)
    assert rows is not None
    named = [name for row in rows[1].splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in LINK.findall(path.read_text()):
        if "://" in target:
            continue
        file = (path.parent / target).resolve()
        assert file.exists(), f"{path.name} links {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{path.name} links {target}#{anchor}"


def test_every_logger_is_documented() -> None:
    code = [
        path.read_text()
        for folder in ("cli", "connectors", "core", "sinks", "sources", "testing")
        for path in (ROOT / folder).rglob("*.py")
    ]
    used = {name for text in code for name in re.findall(r'getLogger\("(onceward\.[\w.]+)"\)', text)}
    rows = re.findall(r"^\| (`onceward\.[^|]*)\|", (ROOT / "docs" / "logging.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} == used
