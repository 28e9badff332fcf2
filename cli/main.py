"""`onceward`: the command line.

Each command imports what it needs when it runs, so that it works with only its own extra installed.
"""

from __future__ import annotations

import keyword
import logging
import re
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from onceward import __version__
from onceward.core.contract.findings import any_failed, skipped
from onceward.core.errors import ConfigurationError, OncewardError
from onceward.core.kit.extras import needing
from onceward.core.kit.secrets import without_logins

from . import show
from .command_advice import message
from .dev import app as dev_app
from .help_texts import finish
from .operate import app as txn_app
from .operate import checkpoints, repair_log_command
from .run import run
from .savepoint import app as savepoint_app
from .shared_options import Access, AsJson, place_forms, with_group
from .status import status
from .ui import ui
from .verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_FAILED, EXIT_MISUSED, EXIT_FAULT, EXIT_INTERRUPTED = 1, 2, 70, 130


class _Commands(TyperGroup):
    """Group of all commands, whose messages about wrong arguments show no password that one of them holds."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        with _hidden_logins():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with _hidden_logins():
            return super().invoke(ctx)


@contextmanager
def _hidden_logins() -> Iterator[None]:
    try:
        yield
    except typer.TyperException as error:
        vars(error)["message"] = without_logins(vars(error).get("message", ""))
        raise


app = typer.Typer(
    name="onceward",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(txn_app, name="txn")
app.add_typer(savepoint_app, name="savepoint")
app.add_typer(dev_app, name="dev")
app.command()(checkpoints)
app.command("repair-log")(repair_log_command)
app.command("ui")(ui)
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(status)
app.command()(verify)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"onceward {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exactly-once sinks and sources for PySpark, by two-phase commit."""


@app.command()
def demo(
    *,
    orders: Annotated[int, typer.Option(min=1, help="How many orders to produce.")] = 200_000,
    users: Annotated[int, typer.Option(min=1, help="How many users they belong to.")] = 200,
    kills: Annotated[int, typer.Option(min=0, help="How many times to kill the driver.")] = 5,
    seed: Annotated[int, typer.Option(help="Random seed of the orders and of the times of the kills.")] = 1,
    home: Annotated[
        Path, typer.Option(help="Folder for services, checkpoints and logs: new, empty, or an earlier demo's.")
    ] = Path(".run/demo"),
    picture: Annotated[Path, typer.Option(help="File for the picture (PNG or SVG).")] = Path(".run/demo.png"),
) -> None:
    """Run Kafka → Spark → Kafka and PostgreSQL with random kills, and check that each row is written exactly once."""
    with needing("demo"):
        from .demo.command import run_demo  # noqa: PLC0415 - an extra
    raise typer.Exit(
        run_demo(orders=orders, users=users, kills=kills, seed=seed, home=home.absolute(), picture=picture)
    )


@app.command()
@with_group
def doctor(
    access: Access,
    *,
    place: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYSTEM:NAME",
            help=f"What a pipeline reads or writes ({place_forms()}): its settings, what this user may do, what its "
            "file system can; repeatable.",
        ),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="Name of the pipeline whose transactional ids and decision log to check.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="URL of the decision log's store, or the checkpoint folder.")
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="The pipeline's query, as for `onceward explain`, to check all that it names.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="MASTER",
            help="Spark's master, or the URL of a Spark Connect server: ask its executors, too, for their Python and "
            "onceward, and whether they reach the systems. Starts a Spark session.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check Java, Python, the systems and the decision log; report what is wrong and how to fix it.

    Changes nothing; in each folder of `--place files:…`, a hidden folder is created and deleted again.
    """
    from .doctor import run_checks, verdict  # noqa: PLC0415 - looks at extras

    findings = run_checks(access, places=place or [], pipeline=pipeline, store=store, cluster=cluster)
    if query is None:
        findings.append(skipped("query", "give --query to check a plan for what weakens the guarantee"))
    else:
        from .explain import load_program, together  # noqa: PLC0415

        findings += [finding for explanation in together(load_program(query)) for finding in explanation.findings]
    show.findings(findings, as_json=as_json)
    if not as_json:
        typer.echo(verdict(findings))
    raise typer.Exit(int(any_failed(findings)))


@app.command("explain", context_settings={"ignore_unknown_options": True})
def explain_command(
    query: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION|FILE.PY[:FUNCTION]",
            help="A function that returns what exactly_once returns, or a Pipeline; or a program, which is run up to "
            "where it would start its queries.",
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the program.")] = None,
    *,
    look: Annotated[bool, typer.Option("--look/--no-look", help="Also ask the decision log and the targets.")] = True,
    as_json: AsJson = False,
) -> None:
    """Say what a query or pipeline guarantees, which part weakens it, and what to do. Starts and writes nothing.

    Exit codes: 0 exactly once; 1 weaker, or something does not work; 2 it could not be explained.
    """
    from .explain import load_program, together  # noqa: PLC0415 - looks at extras

    explanations = together(load_program(query, arguments or []), look=look)
    if as_json:
        show.print_json(explanations)
    else:
        for explanation in explanations:
            explanation.show()
    raise typer.Exit(max(explanation.exit_code for explanation in explanations))


@app.command()
def new_sink(
    name: Annotated[str, typer.Argument(help="Name of the module, for example billing_sink.")],
    folder: Annotated[Path, typer.Option(help="Folder to write it to.")] = Path(),
    connector: Annotated[
        bool,
        typer.Option(
            "--connector",
            help="Also generate its connector, for `txn`, `verify`, `doctor` and a Spark format, and pyproject.toml.",
        ),
    ] = False,
) -> None:
    """Generate a working custom sink, as a starting point for your own, and its conformance test."""
    files = write_skeleton(name, folder, connector=connector)
    tests = " ".join(str(path) for path in files if path.name.startswith("test_"))
    needs = f"'onceward[testing]'{f' -e {folder}' if connector else ''}"
    wrote = " and ".join([", ".join(map(str, files[:-1])), str(files[-1])])
    typer.echo(f"wrote {wrote}; now: pip install {needs} and python -m pytest {tests}")


_SKELETON: Final = Path(__file__).with_name("skeleton")
"""The wheel contains copies; in a checkout these are links to the examples."""


def write_skeleton(name: str, folder: Path, *, connector: bool = False) -> list[Path]:
    """Write NAME.py and test_NAME.py into the folder, with a class called after NAME, and return the files written.

    Args:
        name: Name of the module.
        folder: Folder to write into.
        connector: True to write a connector, its test and a package's files, too. The sink and its test may then be
            there, and stay.

    Raises:
        ConfigurationError: The name is not a valid module name or is that of an installed module, or a file exists.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower() or not name[0].isalpha():
        raise ConfigurationError(f"{name!r} is not a valid module name. Use one such as billing_sink")
    texts = {f"{name}.py": "sink.txt", f"test_{name}.py": "test.txt"}
    if connector:
        texts = {file: skeleton for file, skeleton in texts.items() if not (folder / file).exists()} | {
            f"{name}_connector.py": "connector.txt",
            f"test_{name}_connector.py": "test_connector.txt",
            f"pyspark_onceward_{name}.py": "spark.txt",
            "pyproject.toml": "pyproject.txt",
        }
    there = [str(folder / file) for file in texts if (folder / file).exists()]
    if there:
        exist = "exists" if len(there) == 1 else "exist"
        raise ConfigurationError(f"{', '.join(there)} already {exist}. Nothing was written")
    taken = find_spec(name) if f"{name}.py" in texts else None
    if name in sys.stdlib_module_names or (taken is not None and taken.origin is not None):
        raise ConfigurationError(f"{name} is the name of an installed module, which it would hide. Use another one")
    folder.mkdir(parents=True, exist_ok=True)
    for file, skeleton in texts.items():
        (folder / file).write_text(_renamed((_SKELETON / skeleton).read_text(), name))
    return [folder / file for file in texts]


def _renamed(text: str, name: str) -> str:
    """Return a skeleton's text with the names that belong to a sink of this module name."""
    sink = "".join(part.capitalize() for part in name.split("_"))
    names = {
        "JsonLinesSink": sink,
        "JsonLines": sink.removesuffix("Sink"),
        "json-lines": name.replace("_", "-"),
        "custom_sink": name,
        "custom_connector": f"{name}_connector",
    }
    for old, new in names.items():
        text = text.replace(old, new)
    return text


class RepeatsFiltered(logging.Filter):
    """Drops repeated messages, ignoring numbers in them: clients report a failed connection twice a second."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record says something new."""
        text = re.sub(r"\d+", "#", record.getMessage())
        new = text not in self._said
        self._said.add(text)
        return new


def command() -> Any:
    """Return the whole command line."""
    return finish(get_command(app))


def check_words(words: list[str]) -> None:
    """Refuse an empty argument, as an unset variable leaves it: as a folder it would be the current one.

    Raises:
        ConfigurationError: There is one. The arguments of a program that `onceward run` starts are its own.
    """
    for number, word in enumerate(words):
        if word == "--" or (number == 0 and word == "run"):
            return
        option, equals, value = word.partition("=")
        before = words[number - 1] if number else ""
        name = (
            option
            if equals and option.startswith("--")
            else before
            if before.startswith("-")
            else f"argument {number + 1}"
        )
        if not word.strip() or (equals and option.startswith("--") and not value.strip()):
            raise ConfigurationError(f"{name} is empty: give it a value, or leave it out")


def main() -> None:
    """Run the command line; an error ends it with one message, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # whatever the locale: JSON is UTF-8, and help has an arrow
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    warnings = logging.StreamHandler()
    warnings.addFilter(RepeatsFiltered())
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", handlers=[warnings])
    try:
        check_words(sys.argv[1:])
        command()()
    except (OncewardError, OSError) as error:  # a full disk, for example, or an object store that does not answer
        show.console(stderr=True).print(f"error: {message(error)}", style="red")
        sys.exit(EXIT_MISUSED if isinstance(error, ConfigurationError) else EXIT_FAILED)
    except Exception:  # Python's own exit code for a traceback is 1, which verify and doctor use for "differs"
        logging.getLogger("onceward").exception("a fault of onceward itself: please report it")
        sys.exit(EXIT_FAULT)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
