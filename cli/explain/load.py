"""Run a program up to where it would start its queries, and take them instead.

What is not onceward's or Spark's, the program does: a file that creates a topic before its first start creates it.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from onceward.core.engine.pipeline import Pipeline
from onceward.core.errors import ConfigurationError

from . import explaining

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_BATCH_WRITES = ("save", "saveAsTable", "insertInto", "json", "parquet", "text", "csv", "xml", "orc", "jdbc")
_BATCH_WRITES_V2 = ("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions")


class _Ended(BaseException):
    """The program waits for what it has started, or wants to write: it has said what it will."""


class NotStarted:
    """In place of a started query or job; whoever waits for it, or asks how it is, has started all there is."""

    id = runId = name = "not started"  # noqa: N815 - as Spark calls it

    def __getattr__(self, name: str) -> Any:
        raise _Ended


def load(reference: str, arguments: Sequence[str] = ()) -> list[Any]:
    """The queries and pipelines of a program.

    Args:
        reference: `module:function` of a function that returns a DataStreamWriter or a Pipeline, or several of them;
            `file.py:function`; or a file, which is run up to where it would wait for what it has started.
        arguments: Of the program (`sys.argv`).

    Raises:
        ConfigurationError: There is no such thing, it fails, or it describes no query.
    """
    place, _, name = reference.partition(":")
    is_file = place.endswith(".py")
    if (is_file and not Path(place).is_file()) or (not is_file and not name.isidentifier()):
        raise ConfigurationError(f"there is no {reference!r}: give a file, file.py:function or module:function")
    found: list[Any] = []
    with explaining(), _intercepted(found), patch.object(sys, "argv", [place, *arguments]):
        sys.path.insert(0, str(Path(place).parent.absolute() if is_file else Path.cwd()))
        try:
            with redirect_stdout(sys.stderr):
                found += _returned(place, name, is_file=is_file)
        except _Ended:
            pass
        except (Exception, SystemExit) as error:
            raise ConfigurationError(f"{reference} failed: {type(error).__name__}: {error}") from error
        finally:
            sys.path.pop(0)
    if not found:
        raise ConfigurationError(
            f"{reference} started no query and returned none: name a function that returns what exactly_once returns, "
            "or a Pipeline"
        )
    return found


def _returned(place: str, name: str, *, is_file: bool) -> list[Any]:
    if not name:
        runpy.run_path(place, run_name="__main__")
        return []
    what = runpy.run_path(place)[name] if is_file else getattr(importlib.import_module(place), name)
    made = what() if callable(what) else what
    made = list(made) if isinstance(made, list | tuple) else [made]
    return [one for one in made if one is not None and not isinstance(one, NotStarted)]


@contextmanager
def _intercepted(found: list[Any]) -> Iterator[None]:
    """Nothing is started or written by Spark or by the embedded engine; what would be is put into the list."""

    def start(query: Any, *_: Any, **__: Any) -> Any:
        found.append(query)
        return NotStarted()

    def run(pipeline: Any, **_: Any) -> None:
        found.append(pipeline)
        raise _Ended

    with ExitStack() as stack:
        stack.enter_context(patch.object(Pipeline, "start", start))
        stack.enter_context(patch.object(Pipeline, "run", run))
        with suppress(ImportError):  # pyspark is an extra
            for owner, name, replacement in _of_spark(start):
                stack.enter_context(patch.object(owner, name, replacement))
        yield


def _of_spark(start: Callable[[Any], Any]) -> Iterator[tuple[type, str, Any]]:
    from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2  # noqa: PLC0415 - an extra
    from pyspark.sql.streaming.query import StreamingQueryManager  # noqa: PLC0415
    from pyspark.sql.streaming.readwriter import DataStreamWriter  # noqa: PLC0415

    def start_writer(writer: Any, path: str | None = None, **options: Any) -> Any:
        """Takes the arguments of `start` and `toTable`, whose first one changes nothing here."""
        for setting in ("format", "outputMode", "partitionBy", "queryName"):
            value = options.pop(setting, None)
            if value is not None:
                getattr(writer, setting)(value)
        writer.options(**options, **({} if path is None else {"path": path}))
        return start(writer)

    def end(*_: Any, **__: Any) -> None:
        raise _Ended

    yield from ((DataStreamWriter, name, start_writer) for name in ("start", "toTable"))
    yield from ((DataFrameWriter, name, end) for name in _BATCH_WRITES)
    yield from ((DataFrameWriterV2, name, end) for name in _BATCH_WRITES_V2)
    yield StreamingQueryManager, "awaitAnyTermination", end
