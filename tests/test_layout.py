"""Folders at the top, their links, and the build agree; who may import whom; docstrings begin with a verb."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import layout
from .layout import FOLDERS, ROOT, dotted, nodes_of, python_files, tree_of

if TYPE_CHECKING:
    from collections.abc import Collection

PUBLIC = ROOT / "src" / "onceward"
SYSTEMS = tuple(sorted(path.name for path in (ROOT / "connectors").iterdir() if (path / "__init__.py").exists()))
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]


def absolute_imports(path: Path) -> list[tuple[int, str]]:
    """Absolute imports of a file: line and module."""
    found: list[tuple[int, str]] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.lineno, node.module))
    return found


def test_every_folder_of_the_package_is_a_link_to_a_real_folder_of_the_top() -> None:
    links = {path.name: path for path in PUBLIC.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert sorted(links) == sorted(FOLDERS)
    for name, path in links.items():
        assert path.is_symlink()
        assert path.readlink() == Path(f"../../{name}")
        assert not path.resolve().is_symlink()


def test_the_wheel_takes_every_folder_and_every_file_of_the_top_of_src() -> None:
    files = {f"src/{path.relative_to(ROOT / 'src')}" for path in (ROOT / "src").rglob("*.py") if not _linked(path)}
    written = "src/onceward/_version.py"  # by the build
    assert set(BUILD["only-include"]) == {*FOLDERS, *files - {written}, "src/onceward/py.typed"}
    assert BUILD["sources"] == {"src": "", **{name: f"onceward/{name}" for name in FOLDERS}}


def _linked(path: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(ROOT / "src"))


def test_no_message_names_a_page_of_the_documentation_which_a_wheel_does_not_contain() -> None:
    found = []
    for path in python_files(*FOLDERS):
        about = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}  # docstrings
        texts = [node for node in nodes_of(path) if isinstance(node, ast.Constant) and id(node) not in about]
        found += [f"{path}:{node.lineno}" for node in texts if "docs/" in str(node.value)]
    assert not found


NO_VERBS = frozenset(
    "The What Whether Of How Where Who When Why Whose A An All Each One Into For At As There Nothing".split()  # noqa: SIM905 - in one line
)


def without_verb(tree: ast.AST) -> list[str]:
    """Return the functions, properties apart, whose docstrings begin with one of NO_VERBS: ruff's D401 finds few."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [
        f"{node.lineno} {node.name}"
        for node in functions
        if not any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list)
        if (ast.get_docstring(node) or "-").split()[0] in NO_VERBS
    ]


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    everywhere = python_files(*FOLDERS, "benchmarks", "examples", "scripts")
    files = {str(path.relative_to(ROOT)): path for path in everywhere}
    found = {name: without_verb(tree_of(path)) for name, path in files.items()}
    assert not {name: functions for name, functions in found.items() if functions}


@pytest.mark.parametrize(
    ("code", "functions"),
    [
        ('def f():\n    """Whether it is so."""', ["1 f"]),
        ('class C:\n    """What it is."""\n    async def f(self):\n        """The answer."""', ["3 f"]),
        ('class C:\n    @cached_property\n    def f(self):\n        """The answer."""', []),
        ('def f():\n    """Return whether it is so."""', []),
        ("def f(): ...", []),
    ],
)
def test_a_docstring_without_a_verb_is_recognized(code: str, functions: list[str]) -> None:
    assert without_verb(ast.parse(code)) == functions


def test_nothing_is_imported_under_a_name_that_is_not_installed() -> None:
    """`testing.faults` works in this folder and nowhere else."""
    found = [
        f"{path}:{line} imports {module}"
        for path in python_files(*FOLDERS, "src", "tests", "integration")
        for line, module in absolute_imports(path)
        if module.split(".")[0] in FOLDERS
    ]
    assert not found


MAY_IMPORT = {
    "core": set[str](),
    "sinks": {"core"},
    "sources": {"core"},
    **{f"connectors.{system}": {"core", "sinks", "sources"} for system in SYSTEMS},
    "testing": {"core", "sinks", "sources", *(f"connectors.{system}" for system in SYSTEMS)},
    "cli": {"core", "operations", "sinks", "sources", "testing", *(f"connectors.{system}" for system in SYSTEMS)},
}
"""Packages, and what each may import; ARCHITECTURE.md draws it. `operations` is the public module. `connectors.spark`
reaches the ready sinks and sources of other systems through `onceward`'s own lazy names alone."""
GRANTED = {
    ("connectors/spark/read/kafka_offsets.py", "connectors.kafka"),
    ("connectors/spark/session/processes.py", "connectors.monitoring"),
}
"""What Spark's Kafka options are made of; what is recorded in processes of Spark's own."""


def package_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "connectors" else parts[0]


def test_packages_import_only_what_lies_below_them_and_by_full_names() -> None:
    found: list[str] = []
    for path in python_files(*FOLDERS):
        where = str(path.relative_to(ROOT))
        home = package_of(where.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        if home == "connectors":
            continue
        depth = len(path.relative_to(ROOT).parts) - len(home.split("."))
        nodes = [node for node in nodes_of(path) if isinstance(node, ast.ImportFrom)]
        found += [f"{where}:{node.lineno} leaves {home} by a relative import" for node in nodes if node.level > depth]
        for line, module in absolute_imports(path):
            if module.startswith("onceward."):
                target = package_of(module.removeprefix("onceward."))
                if target == home:
                    found.append(f"{where}:{line} imports {module}: inside of {home} imports are relative")
                elif target not in MAY_IMPORT[home] and (where, target) not in GRANTED:
                    found.append(f"{where}:{line} imports {module}: {home} may not")
    assert not found, "\n".join(found)


def test_there_is_no_import_cycle() -> None:
    """Imports for types alone count, and those inside of functions."""
    graph: dict[str, set[str]] = {}
    for each in layout.imports():
        if each.module in layout.modules():
            graph.setdefault(dotted(ROOT / each.file), set()).add(each.module)
    list(graphlib.TopologicalSorter(graph).static_order())  # or a CycleError, which tells the way


LEFT = {
    "cli/demo/demo_driver.py": "connectors.database.sink connectors.kafka.sink connectors.spark",
    "cli/dev.py": "connectors.kafka.admin connectors.kafka.settings",
    "cli/doctor.py": "connectors.spark.write.executors",
    "cli/explain.py": "connectors.spark.query_description",
    "connectors/spark/read/kafka_offsets.py": """
        connectors.kafka.admin connectors.kafka.positions connectors.kafka.settings connectors.kafka.source""",
    "connectors/spark/session/processes.py": "connectors.monitoring",
}
"""Imports that are forbidden from now on, and are still there. Nothing may be added; what goes is removed from here."""


def test_the_command_line_core_and_spark_import_no_further_system_and_no_more_of_the_test_kit() -> None:
    left = {(file, module) for file, listed in LEFT.items() for module in listed.split()}
    found = layout.forbidden()
    assert not found - left, "these files may not import that"
    assert not left - found, "these are gone: remove them from LEFT"


def test_the_layout_does_not_move_away_from_its_goals() -> None:
    now = {name: figure for name, (figure, _) in layout.bars().items()}
    assert now == {
        "imports of connectors in cli/": 7,
        "files of core/, cli/ and connectors/spark/ that name Kafka": 4,
        "class names defined more than once": 0,
        "floors of connectors/database": 7,
        "circles of imports, import_module counted": 0,
        "rooms in the top row of connectors/spark": 6,
        "is_connect( outside of session": 1,
        "openers of a run: callers of Coordinator(": 1,
        "places that note a failure": 1,
        "names that onceward.operations exports": 48,
        "switches on the backend outside of the dialects": 0,
        "fragments among fields' docstrings and Args, per cent": 7,
        "twin names": 12,
        "test modules that import another one": 0,
        "base fakes of a sink": 2,
        "definitions of a fixture `database`": 1,
        "definitions of a fixture `job`": 1,
        "definitions of a fixture `server`": 1,
        "definitions of a fixture `bench`": 1,
    }, "write down what has become better; nothing may become worse"


def test_the_architecture_says_in_which_process_each_module_for_spark_runs() -> None:
    _, _, table = (ROOT / "ARCHITECTURE.md").read_text().partition("| process | what onceward does in it | modules |\n")
    modules = {
        name for line in table.split("\n\n")[0].splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[3])
    }
    packages = ["connectors/spark", *(f"connectors/spark/{room}" for room in ("session", "read", "write", "formats"))]
    assert modules == {name for package in packages for name in layout.rooms(package)} - {"read", "session", "write"}


def test_an_import_is_known_with_the_package_that_a_link_leads_to() -> None:
    found = {(each.file, each.module) for each in layout.imports()}
    assert ("core/operations/resolve.py", "core.operations.survey") in found  # from .survey import …
    assert ("cli/explain.py", "connectors.spark.query_description") in found  # from onceward.…
    assert (
        "connectors/spark/read/kafka_offsets.py",
        "connectors.kafka.source",
    ) in found  # onceward.KafkaSource
    assert any(line.startswith("cli ") and "→ connectors.spark: " in line for line in layout.report())


PARTS = {"to_batches", "chunks", "iterchunks"}
"""Calls that return one part or several, depending on the number of bytes."""


def firsts_of_several(text: str) -> list[int]:
    """Return the lines of a program that take the first of several parts and forget the others."""
    tree = ast.parse(text)
    named = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_parts(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt)]
    return [node.lineno for node in statements if _takes_first(node, named)]


def _takes_first(node: ast.AST, named: Collection[str]) -> bool:
    match node:
        case ast.Subscript(value=parts, slice=ast.Constant(value=0), ctx=ast.Load()):
            return _is_parts(parts) or (isinstance(parts, ast.Name) and parts.id in named)
        case ast.Call(func=ast.Name(id="next"), args=[parts, *_]):
            return any(_is_parts(part) for part in ast.walk(parts))
        case ast.Call(func=ast.Attribute(attr="chunk"), args=[ast.Constant(value=0)]):
            return True
        case ast.Assign(targets=[ast.Tuple(elts=[*_, ast.Starred()]) | ast.List(elts=[*_, ast.Starred()])]):
            return _is_parts(node.value)
        case _:
            return False


def _is_parts(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=called):
            return _is_parts(called)
        case ast.Attribute(attr=name):
            return name in PARTS
        case ast.BoolOp(values=[first, *_]):
            return _is_parts(first)
        case _:
            return False


@pytest.mark.parametrize(
    "wrong",
    [
        "table.to_batches()[0]",
        "table.to_batches(10)[0]",
        "column.chunks[0]",
        "column.chunk(0)",
        "next(iter(table.to_batches()))",
        "first, *_ = table.to_batches()",
        "parts = table.to_batches() or [none]\nreturned(parts[0])",
    ],
)
def test_the_first_of_several_parts_is_recognized(wrong: str) -> None:
    assert firsts_of_several(wrong)
    assert not firsts_of_several("[only] = table.to_batches()\nmany = [*table.to_batches()]\ncounts[0] = many[0]")


@pytest.mark.slow
def test_nothing_keeps_the_first_of_what_may_be_several_parts() -> None:
    """A table of more than 2 GiB has several batches: code that kept only the first dropped rows without an error."""
    everywhere = python_files(*FOLDERS, "src", "tests", "integration", "benchmarks", "examples", "scripts")
    found = [f"{path}:{line}" for path in everywhere for line in firsts_of_several(path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_the_wheel_made_from_the_source_distribution_has_all_and_only_our_names(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (sdist,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(sdist) as archive:
        shipped = [name.partition("/")[2] for name in archive.getnames()]
        archive.extractall(tmp_path, filter="data")
    assert [name for name in shipped if name.startswith(tuple(f"src/onceward/{folder}/" for folder in FOLDERS))] == []
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [metadata] = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
        skeleton = archive.read("onceward/cli/skeleton/sink.txt")
    assert skeleton == (ROOT / "examples" / "custom_sink.py").read_bytes()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    formats = ("files", "http", "kafka", "postgres", "redis", "sql")
    assert tops == {"onceward", "pyspark_onceward.py", *(f"pyspark_onceward_{name}.py" for name in formats)}
    expected = {f"onceward/{path.relative_to(PUBLIC)}" for path in PUBLIC.rglob("*.py")}
    for folder in FOLDERS:
        expected |= {f"onceward/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}
    assert expected <= names
    assert "onceward/cli/skeleton/test.txt" in names
    assert {name for name in names if name.endswith(".lock")} == {
        f"onceward/{path.relative_to(ROOT)}" for path in (ROOT / "testing").rglob("*.lock")
    }
    links = re.findall(r"\]\(([^)]+)\)", metadata)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == [], "the index has no such file"
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel:editable"]
    built = subprocess.run(command, cwd=unpacked, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert all((unpacked / "src" / "onceward" / folder / "__init__.py").exists() for folder in FOLDERS)
