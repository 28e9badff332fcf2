"""What onceward knows of folders of files beyond its sink and source; imported by every command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onceward.core.connector import Connector

from .checks import check_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onceward.core.operations.findings import Finding

    from .reread import WrittenFolder


class FilesConnector(Connector):
    """File systems: a folder's path says where it is."""

    name = "files"
    sink = "onceward.connectors.files.sink:FileSink"
    source = "onceward.connectors.files.source:FileSource"
    place_form = "FOLDER"

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterable[Finding]:  # noqa: ARG002
        """Check what the file systems of folders can do."""
        return [check_folder(Path(name)) for name in names]

    def place(self, name: str) -> WrittenFolder:
        """Return a folder that a FileSink has written to."""
        from .reread import WrittenFolder  # noqa: PLC0415 - pyarrow's readers

        return WrittenFolder(name)
