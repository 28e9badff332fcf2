"""The conformance suite for JsonLinesSink: run it with pytest, in this folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from custom_sink import JsonLinesSink

from onceward.sinks import file_name
from onceward.testing.conformance import SinkConformance, SinkUnderTest


class TestJsonLinesSink(SinkConformance):
    """Every case that a sink can be asked by itself."""

    @pytest.fixture
    def sink_under_test(self, tmp_path: Path) -> SinkUnderTest:
        folder = tmp_path / "out"

        def read_rows() -> list[dict[str, Any]]:
            """Return all rows that a reader sees now."""
            lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
            return [json.loads(line) for line in lines]

        def delete(pattern: str) -> None:
            for path in folder.glob(pattern):
                path.unlink()

        # remembers=True asks that check_claim refuses a decision log that was restored from a backup, too.
        return SinkUnderTest(
            make=lambda: JsonLinesSink("mine", folder),
            read=lambda: [row["n"] for row in read_rows()],
            read_rows=read_rows,
            ordered=True,
            kill=True,
            remembers=False,
            take_away=lambda: delete("*.jsonl"),
            delete_prepared=lambda committable: delete(f"_{file_name(committable.transaction)}.pending"),
        )
