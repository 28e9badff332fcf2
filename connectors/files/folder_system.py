"""Folders of files as commands ask them: what is written there, and whether they are fit for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onceward.core.contract.findings import failed
from onceward.core.errors import ConfigurationError, SinkError

from .checks import check_folder
from .connector import FilesConnector
from .foreign_folders import check_tables
from .reread import WrittenFolder
from .sink import FileSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from onceward.core.contract.findings import Finding
    from onceward.core.contract.sink import Sink
    from onceward.core.contract.source import ResettableSource


class FolderSystem(FilesConnector):
    """File systems, with the modules that read and write files."""

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterable[Finding]:  # noqa: ARG002
        """Check the folders' file systems, and that no table's metadata decide which of their files count."""
        for folder in map(Path, names):
            yield check_folder(folder)
            yield from _refused(folder, lambda: check_tables(folder))  # noqa: B023 - called at once

    @classmethod
    def check_parts(
        cls,
        sinks: Sequence[Sink],
        sources: Sequence[ResettableSource],  # noqa: ARG003
        pipeline: str | None,  # noqa: ARG003
    ) -> Iterable[Finding]:
        """Check that readers of each sink's folder see its rows."""
        for sink in sinks:
            if isinstance(sink, FileSink):
                yield from _refused(sink.folder, sink.check_folder)

    @classmethod
    def reach(cls, sink: Sink) -> None:
        """Look at the folder, if it is there."""
        if isinstance(sink, FileSink):
            sink.check_folder()

    def place(self, name: str) -> WrittenFolder:
        """Return a folder that a FileSink has written to."""
        return WrittenFolder(name)


def _refused(folder: object, check: Callable[[], None]) -> Iterable[Finding]:
    try:
        check()
    except (ConfigurationError, SinkError) as error:
        yield failed("folder", error.message, "see the message", str(folder))
