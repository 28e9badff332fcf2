"""Which package imports which, with the links below `src/onceward` followed, and how far the layout is from its goals.

`python -m tests.layout` (or `make layout`) prints both.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import onceward

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parent.parent
FOLDERS = ("cli", "connectors", "core", "sinks", "sources", "testing")
SHOWROOMS = ("cli/dev.py", "cli/demo/")
"""Files of the command line that start services and pipelines of their own."""
_KAFKA = re.compile(r"\bkafka", re.IGNORECASE)


class Import(NamedTuple):
    """One import statement."""

    file: str
    line: int
    module: str
    """In full, without `onceward.`; for a lazy name of `onceward`, the module in which it is defined."""
    at_once: bool
    """Whether it runs when its module is imported: it is neither for types alone nor inside of a function."""


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file; nobody may change it."""
    return ast.parse(path.read_text(), str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(tree_of(path)))


def dotted(path: Path) -> str:
    """Return a file's module, without `onceward.`."""
    return str(path.relative_to(ROOT)).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def modules() -> Mapping[str, Path]:
    """Return the modules of the product."""
    return {dotted(path): path for path in python_files(*FOLDERS)}


@cache
def imports() -> tuple[Import, ...]:
    """Return each import of the product's own modules, those for types and those inside of functions included."""
    return tuple(each for module, path in modules().items() for each in _imports_of(module, path))


def _imports_of(module: str, path: Path) -> Iterator[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    file = str(path.relative_to(ROOT))
    later = {id(node) for each in nodes_of(path) if _runs_later(each) for node in ast.walk(each)}
    for node in nodes_of(path):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = node.module or ""
        if node.level:
            parents = package.split(".")[: package.count(".") + 2 - node.level]
            base = ".".join([*parents, *filter(None, [base])])
        elif base.split(".")[0] != "onceward":
            continue
        base = base.removeprefix("onceward").removeprefix(".")
        for named in dict.fromkeys(_module_of(base, alias.name) for alias in node.names):
            if named:
                yield Import(file, node.lineno, named, id(node) not in later)


def _runs_later(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))


def _module_of(base: str, name: str) -> str:
    if not base:
        return onceward._NAMES.homes.get(name, (f".{name}", ""))[0].removeprefix(".")
    submodule = f"{base}.{name}"
    return submodule if submodule in modules() else base


def room_of(module: str) -> str:
    """Return the package that a module is in."""
    return module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]


def forbidden() -> set[tuple[str, str]]:
    """Return the imports, as file and module, that stand between the layout and its goal.

    The command line knows no system by name, and stands on the test kit only where it starts services of its own. Core
    and the adapter for Spark know no system by name.
    """
    return {(each.file, each.module) for each in imports() if _is_forbidden(each)}


def _is_forbidden(each: Import) -> bool:
    system = each.module.startswith("connectors.")
    if each.file.startswith("cli/"):
        return system or (each.module.split(".")[0] == "testing" and not each.file.startswith(SHOWROOMS))
    if each.file.startswith(("core/", "connectors/spark/")):
        return system and not each.module.startswith("connectors.spark")
    return False


def arrows() -> Counter[tuple[str, str]]:
    """Return how many imports lead from one package to another."""
    known = modules()
    pairs = ((room_of(dotted(ROOT / each.file)), room_of(each.module)) for each in imports() if each.module in known)
    return Counter(pair for pair in pairs if pair[0] != pair[1])


def floors(package: str) -> int:
    """Return how many modules of a package the longest chain of imports has that loading one of them sets off."""
    below: dict[str, set[str]] = defaultdict(set)
    for each in imports():
        module = dotted(ROOT / each.file)
        if each.at_once and f"{module}.".startswith(f"{package}.") and f"{each.module}.".startswith(f"{package}."):
            below[module].add(each.module)

    @cache
    def height(module: str) -> int:
        return 1 + max(map(height, below[module]), default=0)

    return max(map(height, list(below)), default=0)


def repeated_class_names() -> list[str]:
    """Return the names that more than one class of the product has."""
    everywhere = (node for path in modules().values() for node in nodes_of(path))
    names = Counter(node.name for node in everywhere if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def naming_kafka() -> list[str]:
    """Return the files of core, of the command line and of the adapter for Spark whose code names Kafka."""
    paths = (path for path in python_files("core", "cli", "connectors/spark"))
    files = {str(path.relative_to(ROOT)): path for path in paths}
    return [file for file, path in files.items() if not file.startswith(SHOWROOMS) and _KAFKA.search(_code(path))]


def _code(path: Path) -> str:
    """Return a file's code, without comments and docstrings."""
    return ast.unparse(_WithoutTexts().visit(ast.parse(path.read_text())))


class _WithoutTexts(ast.NodeTransformer):
    """Drops docstrings, and the names of modules of the same package."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return ast.ImportFrom(None if node.level else node.module, node.names, node.level)


def bars() -> dict[str, tuple[int, int]]:
    """Return what is measured of the layout: the figure now, and its goal."""
    from_cli = [each for each in imports() if each.file.startswith("cli/") and each.module.startswith("connectors.")]
    return {
        "imports of connectors in cli/": (len(from_cli), 8),
        "files of core/, cli/ and connectors/spark/ that name Kafka": (len(naming_kafka()), 4),
        "class names defined more than once": (len(repeated_class_names()), 8),
        "floors of connectors/database": (floors("connectors.database"), 8),
    }


def report() -> Iterable[str]:
    """Return the arrows and the bars as lines of text."""
    counted = arrows()
    width = max(len(source) for source, _ in counted)
    for (source, target), count in sorted(counted.items()):
        yield f"{source:{width}} → {target}: {count}"
    yield ""
    yield from (f"{name}: {now} (goal: at most {goal})" for name, (now, goal) in bars().items())
    yield f"imports that are still to go: {len(forbidden())}"


if __name__ == "__main__":
    print("\n".join(report()))  # noqa: T201 - a command
