"""The suites that onceward ships, which integration/test_another_package.py runs where the package is installed."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from shelf import ShelfSink
from shelf.connector import ShelfConnector
from shelf.database import create

from onceward.testing.conformance import (
    ConnectorConformance,
    ConnectorUnderTest,
    Refused,
    SinkConformance,
    SinkUnderTest,
)
from onceward.testing.pipeline import FAULTS, Custom, Folder, PipelineTest

if TYPE_CHECKING:
    from onceward.testing.pipeline import Addresses, Row


def items(file: str) -> list[Row]:
    """What is on the shelves."""
    with closing(sqlite3.connect(file)) as connection:
        return [json.loads(item) for (item,) in connection.execute("SELECT item FROM items")]


def changed(file: str, statement: str, *values: str) -> None:
    """Change the file behind the sink's back."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(statement, values)
        connection.commit()


class TestShelfSink(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, tmp_path: Path) -> SinkUnderTest:
        file = str(tmp_path / "shelves.db")
        create(file, "items")
        return SinkUnderTest(
            make=lambda: ShelfSink("mine", file),
            read=lambda: [row["n"] for row in items(file)],
            kill=True,
            take_away=lambda: changed(file, "DELETE FROM items"),
            delete_prepared=lambda one: changed(file, "DELETE FROM prepared WHERE name = ?", one.transaction),
        )


class TestShelfConnector(ConnectorConformance):
    @pytest.fixture
    def connector_under_test(self, tmp_path: Path) -> ConnectorUnderTest:
        file = str(tmp_path / "shelves.db")
        create(file, "items", "locked")
        changed(file, "UPDATE shelves SET locked = name = 'locked'")
        return ConnectorUnderTest(
            make=lambda: ShelfConnector(file),
            sink=lambda: ShelfSink("mine", file),
            place="items",
            alter=lambda: changed(file, "UPDATE items SET item = json_set(item, '$.n', 0) WHERE rowid = 1"),
            refused={
                "no shelf": Refused(lambda: ShelfSink("mine", file, "no"), lambda: ShelfConnector(file), "no"),
                "locked": Refused(lambda: ShelfSink("mine", file, "locked"), lambda: ShelfConnector(file), "locked"),
                "no file": Refused(lambda: ShelfSink("mine", f"{file}-"), lambda: ShelfConnector(f"{file}-")),
            },
            unreachable=lambda: ShelfConnector(f"{file}-"),
        )


def copy() -> None:
    """The pipeline: a folder to a shelf."""
    from onceward import CheckpointConfig, FileSource, Pipeline, open_store

    folder, name = os.environ["PIPELINE_FOLDER"], os.environ["PIPELINE_NAME"]
    file = Path(folder) / "shelves.db"
    if not file.exists():
        create(f"{file}.new", "items")
        Path(f"{file}.new").rename(file)
    pipeline = Pipeline(
        name, checkpointing=CheckpointConfig(interval=0.3), store=open_store(f"{folder}/log", pipeline=name)
    )
    pipeline.source(FileSource(f"{folder}/in", format="jsonl")).sink(ShelfSink("shelf", str(file)))
    pipeline.run()


def on_shelves(addresses: Addresses) -> list[Row]:
    """What a reader of the pipeline's file sees."""
    file = addresses.folder / "shelves.db"
    return items(str(file)) if file.exists() else []


class TestPipeline(PipelineTest):
    command = copy
    inputs = Folder("in")
    outputs = Custom("shelf", on_shelves)
    services = "local"
    faults = {name: FAULTS[name] for name in ("clean", "kill-driver")}
    row_count = 100
    uses_onceward = True
