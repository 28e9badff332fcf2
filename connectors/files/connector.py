"""What onceward knows of folders of files beyond its sink and source; imported by every command."""

from __future__ import annotations

from onceward.core.contract.connector import Connector


class FilesConnector(Connector):
    """File systems: a folder's path says where it is."""

    name = "files"
    sink = "onceward.connectors.files.sink:FileSink"
    source = "onceward.connectors.files.source:FileSource"
    place_form = "FOLDER"
    implementation = "onceward.connectors.files.folder_system:FolderSystem"
