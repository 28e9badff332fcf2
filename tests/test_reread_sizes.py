"""Rows that are read back come in pieces of a bounded number of bytes, whatever the number of rows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from onceward import FileSink
from onceward.connectors.files.reread import reread_folder
from onceward.core.contract.transaction import CommitStatus
from onceward.core.kit.pieces import PIECE_BYTES

from .sink_kit import context

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.types import FileFormat

ROW = 2**20


@pytest.mark.parametrize("format_", ["parquet", "jsonl", "arrow", "csv"])
def test_rows_of_a_megabyte_are_read_back_a_few_at_a_time(tmp_path: Path, format_: FileFormat) -> None:
    sink = FileSink("files", tmp_path, format=format_)
    transaction = sink.begin(context("files"))
    count = 3 * PIECE_BYTES // ROW
    for number in range(count):
        text = os.urandom(ROW // 2).hex()
        sink.write(transaction, pa.record_batch({"n": [number], "text": [text]}))
    assert sink.commit(sink.pre_commit(transaction)).status is CommitStatus.COMMITTED
    sizes = [(piece.rows.num_rows, piece.rows.nbytes) for piece in reread_folder(str(tmp_path), None).pieces]
    assert sum(rows for rows, _ in sizes) == count
    assert max(size for _, size in sizes) <= PIECE_BYTES + 2 * ROW, sizes
