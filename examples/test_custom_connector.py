"""The conformance suite for JsonLinesConnector: run it with pytest where the package is installed."""

from pathlib import Path

import pytest
from custom_connector import JsonLinesConnector
from custom_sink import JsonLinesSink

from onceward.testing.conformance import ConnectorConformance, ConnectorUnderTest


class TestJsonLinesConnector(ConnectorConformance):
    """Every case that a connector can be asked by itself."""

    @pytest.fixture
    def connector_under_test(self, tmp_path: Path) -> ConnectorUnderTest:
        folder = tmp_path / "out"
        folder.mkdir()

        def alter() -> None:
            """Change a row behind the sink's back."""
            [path, *_] = folder.glob("*.jsonl")
            path.write_text(path.read_text().replace("row", "altered", 1))

        return ConnectorUnderTest(
            make=lambda: JsonLinesConnector(str(folder)),
            sink=lambda: JsonLinesSink("mine", folder),
            place="rows",
            alter=alter,
        )
