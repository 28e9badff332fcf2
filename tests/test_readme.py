"""The pages' programs are the files of examples/, and what the docs list is what there is; integration/ runs them."""

from __future__ import annotations

import ast
import builtins
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CUSTOM_SINK = (ROOT / "docs" / "how-to" / "custom-sink.md").read_text()
WITH_PROGRAMS = [README, *((ROOT / "docs" / name).read_text() for name in ("getting-started.md", "engine.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#([\w-]+))?\)")


@pytest.mark.parametrize(
    "block",
    [block for page in WITH_PROGRAMS for block in BLOCK.finditer(page)] + [*BLOCK.finditer(CUSTOM_SINK)][:1],
    ids=lambda block: block[1].partition("\n")[0],
)
def test_a_program_is_the_file_that_is_linked_before_it(block: re.Match[str]) -> None:
    file = re.findall(r"\]\((?:\.\./)*(examples/(?!test_)\w+\.py)\)", block.string[: block.start()])[-1]
    assert block[1] == (ROOT / file).read_text()


YOURS = {
    *("df", "dsn", "path", "schema", "servers", "sink", "spark", "token", "url"),
    *("MySink", "MyConnector", "MySource", "numbers_in", "put", "run_job"),
}
"""What an example leaves to the reader."""


@pytest.mark.parametrize(
    "block", [block for path in DOCS for block in BLOCK.finditer(path.read_text())], ids=lambda block: block[1][:40]
)
def test_an_example_imports_what_it_uses(block: re.Match[str]) -> None:
    known, used = {*dir(builtins), *YOURS}, set[str]()
    for node in ast.walk(ast.parse(block[1])):
        match node:
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Name(name) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                known.add(name)
            case ast.Import(names) | ast.ImportFrom(names=names):
                known |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
            case ast.ExceptHandler(name=str(name)):
                known.add(name)
    assert used <= known


def test_the_custom_sink_has_as_many_lines_as_is_said() -> None:
    lines = (ROOT / "examples" / "custom_sink.py").read_text().splitlines()
    assert re.findall(r"(\d+) lines", CUSTOM_SINK) == [str(len(lines))] * 2


def test_a_stranger_reads_the_readme_in_minutes() -> None:
    assert len(re.findall(r"\S*\w\S*", README)) < 1200


def test_every_extra_is_listed_and_no_other() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.search(r"\| extra \| for \|\n\|---\|---\|\n((?:\|.*\n)+)", page)
    assert rows is not None
    named = [name for row in rows[1].splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in LINK.findall(text):
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


def test_the_two_commands_of_a_fresh_clone_are_said_once_and_are_those_that_ci_runs() -> None:
    commands = [
        line.partition("#")[0].strip()
        for block in re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line.startswith("make ")
    ]
    assert commands == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE) for command in commands)
    assert re.search(r"^within \d+ make test\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
