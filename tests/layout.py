"""Which package imports which, with the links below `src/onceward` followed, and how far the layout is from its goals.

`python -m tests.layout` (or `make layout`) prints both.
"""

from __future__ import annotations

import ast
import inspect
import math
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


def circles() -> list[set[str]]:
    """Return the sets of modules that import each other, `import_module(".name", …)` and imports for types included."""
    below: dict[str, set[str]] = defaultdict(set)
    for each in imports():
        if each.module in modules():
            below[dotted(ROOT / each.file)].add(each.module)
    for module, path in modules().items():
        called = (node for node in nodes_of(path) if isinstance(node, ast.Call) and node.args)
        for node in called:
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            if ast.unparse(node.func).endswith("import_module") and isinstance(name, str):
                package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                target = f"{package}{name}" if name.startswith(".") else name.removeprefix("onceward.")
                below[module].update({target} & modules().keys())
    reached = {module: _reached(below, module) for module in list(below)}
    together = {module: {other for other in reached[module] if module in reached.get(other, ())} for module in reached}
    return [set(one) for one in {frozenset(other) for other in together.values() if len(other) > 1}]


def _reached(below: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        new = below.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def rooms(package: str) -> list[str]:
    """Return the modules and packages in the top row of a package."""
    paths = (ROOT / package).iterdir()
    return sorted(path.stem for path in paths if not path.name.startswith("_") and path.suffix in {"", ".py"})


def asking_for_connect() -> list[str]:
    """Return where code outside of Spark's session asks whether a session is one of Spark Connect."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files("connectors/spark")
        if path.parent.name != "session"
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "is_connect"
    ]


def calling(name: str, *, apart: str) -> list[str]:
    """Return where product code calls a function or class by this name, but for one file or folder."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules().values()
        if not str(path.relative_to(ROOT)).startswith((apart, "testing/"))
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name
    ]


_NO_DIALECTS = ("dialect.py", "sqlite", "mariadb", "postgres")
_ROW_DIALECT = re.compile(r"isinstance\(.*RowDialect")
_BACKENDS = re.compile(r"(backend|dialect\.name|get_backend_name\(\)|drivername).*(==|!=|\bin\b)")


def switches_on_the_backend() -> list[str]:
    """Return where code of `connectors/database` outside of its dialects asks which database it talks to."""
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files("connectors/database")
        if not any(part.startswith(_NO_DIALECTS) for part in path.relative_to(ROOT).parts)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _ROW_DIALECT.search(line) or _BACKENDS.search(line)
    ]


def importing_tests() -> list[str]:
    """Return each import of a test module by another one."""
    return [
        f"{path.relative_to(ROOT)} imports {node.module}"
        for path in python_files("tests", "integration")
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2].startswith("test_")
    ]


SINKS = ("TwoPhaseCommitSink", "WriteAheadLogSink", "DirectSink", "IdempotentSink")
"""Base classes of sinks that authors subclass."""
_MOST_VARIANTS = 10


def base_fakes() -> list[str]:
    """Return the sinks of tests that several modules use, or of which more than ten others are made.

    Sinks without transactions are not counted.
    """
    made_of: dict[str, set[str]] = defaultdict(set)
    homes: dict[str, Path] = {}
    users: dict[str, set[str]] = defaultdict(set)
    for path in [*(ROOT / "tests").glob("*.py"), *(ROOT / "integration").glob("*.py")]:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                homes[node.name] = path
                for base in node.bases:
                    made_of[ast.unparse(base).partition("[")[0]].add(node.name)
            elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("tests.")):
                for alias in node.names:
                    users[alias.name].add(str(path))
    fakes = _reached(made_of, SINKS[0]) | _reached(made_of, SINKS[1])
    return sorted(
        name
        for name in fakes
        if name in homes and (len(users[name]) > 1 or len(_reached(made_of, name)) > _MOST_VARIANTS)
    )


SHARED_FIXTURES = ("database", "job", "server", "bench")
"""Fixtures whose names once meant something else in each module."""


def fixtures(name: str) -> list[str]:
    """Return the modules of tests that define a fixture, once for each definition."""
    return [
        str(path.relative_to(ROOT))
        for path in python_files("tests", "integration")
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef) and node.name == name
        if any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]


_FIRST_OF_A_FRAGMENT = re.compile(
    "about|above|after|against|among|around|as|at|before|behind|below|beneath|beside|between|by|down|during|for|from|in|"
    "inside|into|like|near|of|off|on|onto|out|outside|over|past|per|since|through|till|to|toward|under|until|up|upon|with|"
    "within|without|how|what|when|where|whether|which|who|whom|whose|why|he|i|it|nobody|none|nothing|one|she|that|these|"
    "they|this|those|we|you",
    re.IGNORECASE,
)
_ENTRY = re.compile(r"^ {4}\*{0,2}(\w+)(?: \([^)]*\))?: (.+)$", re.MULTILINE)


def fragments() -> tuple[list[str], int]:
    """Return the fragments among fields' docstrings and entries of `Args`, and how many of both there are.

    A fragment begins with a preposition, a question word or a pronoun, or has at most two words.
    """
    texts = [text for path in modules().values() for text in _told(path)]
    return [text for text in texts if _is_fragment(text)], len(texts)


def _is_fragment(text: str) -> bool:
    words = re.findall(r"[\w'`.]+", text)
    return len(words) <= 2 or bool(_FIRST_OF_A_FRAGMENT.fullmatch(words[0]))


def _told(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef | ast.Module):
            for field, about in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign | ast.Assign) and isinstance(about, ast.Expr):
                    value = about.value
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield value.value
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            described = ast.get_docstring(node) or ""
            for section in ("Args:", "Attributes:"):
                _, _, rest = described.partition(f"{section}\n")
                yield from (entry[2] for entry in _ENTRY.finditer(re.split(r"\n(?=\S)", rest)[0]))


def twins() -> list[str]:
    """Return the stems of modules and the names of public functions that stand in more than one place."""
    stems = Counter(path.stem for path in modules().values() if not path.stem.startswith("_"))
    functions = Counter(
        node.name
        for path in modules().values()
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    )
    return sorted({name for names in (stems, functions) for name, count in names.items() if count > 1})


def exported() -> list[str]:
    """Return the names that `onceward.operations` exports."""
    import onceward.operations

    return sorted(name for name, _ in inspect.getmembers(onceward.operations) if name in onceward.operations.__all__)


def bars() -> dict[str, tuple[int, int]]:
    """Return what is measured of the layout: the figure now, and its goal."""
    torn, told = fragments()
    from_cli = [each for each in imports() if each.file.startswith("cli/") and each.module.startswith("connectors.")]
    return {
        "imports of connectors in cli/": (len(from_cli), 8),
        "files of core/, cli/ and connectors/spark/ that name Kafka": (len(naming_kafka()), 4),
        "class names defined more than once": (len(repeated_class_names()), 8),
        "floors of connectors/database": (floors("connectors.database"), 8),
        "circles of imports, import_module counted": (len(circles()), 0),
        "rooms in the top row of connectors/spark": (len(rooms("connectors/spark")), 10),
        "is_connect( outside of session": (len(asking_for_connect()), 1),
        "openers of a run: callers of Coordinator(": (len(calling("Coordinator", apart="core/checkpoint/")), 1),
        "places that note a failure": (len(calling("note_failure", apart="core/log/")), 1),
        "names that onceward.operations exports": (len(exported()), 48),
        "switches on the backend outside of the dialects": (len(switches_on_the_backend()), 4),
        "fragments among fields' docstrings and Args, per cent": (math.ceil(100 * len(torn) / told), 10),
        "twin names": (len(twins()), 25),
        "test modules that import another one": (len(importing_tests()), 0),
        "base fakes of a sink": (len(base_fakes()), 2),
        **{f"definitions of a fixture `{name}`": (len(fixtures(name)), 1) for name in SHARED_FIXTURES},
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
