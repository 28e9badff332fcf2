"""A target that fails inside of a sink's call: by a proxy, by functions of the sink's author, or in the call itself.

The third way needs nothing from the author. Whatever a sink does through Python's own files, sockets and SQLite can be
made to fail by this process: the profiler sees each call of a C function before it is made and after it has returned,
and an exception that it raises is one that the function raises. So "the rename failed", and "the rename was done, and
its answer was lost", happen exactly there. What a client written in C does by itself is not seen.
"""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from .sink_case import SinkUnderTest

LATE_SECONDS: Final = 1.0
_READS: Final = frozenset({"open", "listdir", "scandir", "read", "readline", "readlines", "readinto"})
_CHANGES: Final = frozenset(
    {
        *("rename", "replace", "link", "symlink", "unlink", "remove", "rmdir", "mkdir", "fsync", "fdatasync"),
        *("write", "writelines", "pwrite", "flush", "truncate", "ftruncate"),
    }
)
_SOCKETS: Final = frozenset({"connect", "send", "sendall", "recv", "recv_into"})
_SQL: Final = frozenset({"execute", "executemany", "executescript", "commit", "__exit__"})
_ASIDE: Final = ("importlib", f"{os.sep}logging{os.sep}", f"{os.sep}linecache.py", f"{os.sep}traceback.py", "tokenize")
"""Parts of file names: what these do is no business of the sink."""
_SYNCS: Final = frozenset({"fsync", "fdatasync"})


class Site(NamedTuple):
    """A call to the operating system or to SQLite, made at a line."""

    name: str
    file: str
    line: int

    @property
    def changes(self) -> bool:
        """Whether it may have an effect, so that its answer can be lost."""
        return self.name not in _READS and self.name not in {"connect", "recv", "recv_into"}

    @property
    def syncs(self) -> bool:
        """Whether it makes something durable: if it failed, nothing may be called committed."""
        return self.name in _SYNCS

    def __str__(self) -> str:
        return f"{self.name} at {Path(self.file).name}:{self.line}"


@contextmanager
def watched_io() -> Iterator[list[Site]]:
    """Give the calls that this thread makes in the block, each line's first, in order."""
    sites: dict[Site, None] = {}

    def sees(frame: FrameType, event: str, function: Any) -> None:
        site = _site(frame, event, function, "c_call")
        if site is not None:
            sites[site] = None

    found: list[Site] = []
    with _profiling(sees):
        yield found
    found += sites


@contextmanager
def failing_io(site: Site, *, after: bool) -> Iterator[list[Site]]:
    """Make a call fail once that this thread makes in the block; give a list that is empty once it has failed.

    Args:
        site: Call that fails.
        after: True if the call takes effect, and only its answer is lost.
    """
    left = [site]

    def fails(frame: FrameType, event: str, function: Any) -> None:
        if left and _site(frame, event, function, "c_return" if after else "c_call") == site:
            left.clear()
            raise _error(function)

    with _profiling(fails):
        yield left


@contextmanager
def _profiling(function: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(function)
    try:
        yield
    finally:
        sys.setprofile(before)


def _site(frame: FrameType, event: str, function: Any, wanted: str) -> Site | None:
    if event != wanted or not _is_io(function):
        return None
    inner, aside = frame, False
    walk: FrameType | None = frame
    while walk is not None and not aside:
        aside = any(part in walk.f_code.co_filename for part in _ASIDE)
        walk = walk.f_back
    while inner.f_back is not None and _is_of_python(inner.f_code.co_filename):
        inner = inner.f_back  # the line that asked pathlib, and not pathlib's
    return None if aside else Site(function.__name__, inner.f_code.co_filename, inner.f_lineno)


_PYTHON: Final = str(Path(os.__file__).parent)


def _is_of_python(file: str) -> bool:
    return file.startswith((_PYTHON, "<frozen")) and "site-packages" not in file


def _is_io(function: Any) -> bool:
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if isinstance(owner, socket.socket):
        return name in _SOCKETS
    if isinstance(owner, sqlite3.Connection | sqlite3.Cursor):
        return name in _SQL
    if name not in _READS and name not in _CHANGES:
        return False
    module = getattr(owner, "__name__", "")
    return module in {"posix", "nt"} or (name == "open" and module in {"io", "_io"}) or type(owner).__name__ in _FILES


_FILES: Final = frozenset({"FileIO", "BufferedWriter", "BufferedReader", "BufferedRandom", "TextIOWrapper"})


def _error(function: Any) -> Exception:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, socket.socket):
        with suppress(OSError):  # some clients go on to read an answer
            owner.shutdown(socket.SHUT_RDWR)
        return ConnectionResetError(errno.ECONNRESET, "injected: connection reset by peer")
    if isinstance(owner, sqlite3.Connection | sqlite3.Cursor):
        busy = sqlite3.OperationalError("injected: database is locked")
        busy.sqlite_errorcode, busy.sqlite_errorname = sqlite3.SQLITE_BUSY, "SQLITE_BUSY"
        return busy
    return OSError(errno.EIO, "injected: input/output error")


@dataclass(frozen=True)
class Outage:
    """One way in which the whole target fails while a call is made.

    Attributes:
        words: Description of the outage, for messages.
        begin: Makes the target fail.
        end: Makes it work again.
    """

    words: str
    begin: Callable[[], None]
    end: Callable[[], None]


def outages_of(sink_under_test: SinkUnderTest) -> list[Outage]:
    """Return the ways in which a sink's target can fail, by its proxy and its author's functions."""
    outages = []
    proxy = sink_under_test.proxy
    if proxy is not None:
        outages += [
            Outage("the target refuses connections", proxy.refuse, proxy.mend),
            Outage("the target's answers end in the middle", proxy.truncate, proxy.mend),
            Outage(f"the target answers {LATE_SECONDS:g} s late", lambda: proxy.delay(LATE_SECONDS), proxy.mend),
            Outage("the target does what it is asked, and its answers are lost", proxy.drop_answers, proxy.mend),
        ]
    if sink_under_test.break_target is not None and sink_under_test.mend_target is not None:
        outages.append(Outage("the target is broken", sink_under_test.break_target, sink_under_test.mend_target))
    return outages
