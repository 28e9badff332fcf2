"""What onceward knows of folders of files beyond its sink and source; imported by every command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onceward.core.contract.connector import Connector
from onceward.core.contract.findings import failed
from onceward.core.errors import ConfigurationError, SinkError

from .checks import check_folder
from .foreign_folders import check_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from onceward.core.contract.findings import Finding
    from onceward.core.contract.sink import Sink
    from onceward.core.contract.source import ResettableSource

    from .reread import WrittenFolder


class FilesConnector(Connector):
    """File systems: a folder's path says where it is."""

    name = "files"
    sink = "onceward.connectors.files.sink:FileSink"
    source = "onceward.connectors.files.source:FileSource"
    place_form = "FOLDER"

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
        from .sink import FileSink  # noqa: PLC0415 - pyarrow's writers

        for sink in sinks:
            if isinstance(sink, FileSink):
                yield from _refused(sink.folder, sink.check_folder)

    @classmethod
    def reach(cls, sink: Sink) -> None:
        """Look at the folder, if it is there."""
        from .sink import FileSink  # noqa: PLC0415 - pyarrow's writers

        if isinstance(sink, FileSink):
            sink.check_folder()

    def place(self, name: str) -> WrittenFolder:
        """Return a folder that a FileSink has written to."""
        from .reread import WrittenFolder  # noqa: PLC0415 - pyarrow's readers

        return WrittenFolder(name)


def _refused(folder: object, check: Callable[[], None]) -> Iterable[Finding]:
    try:
        check()
    except (ConfigurationError, SinkError) as error:
        yield failed("folder", error.message, "", str(folder))
