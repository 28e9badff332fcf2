"""A decision log on a local disk, where the driver may run on another machine the next time."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
import pytest

from onceward import FileSink
from onceward.connectors.spark.formats.writers import BatchWriter
from onceward.connectors.spark.session.options import FormatOptions
from onceward.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.RecordBatch.from_pydict({"n": [1]})


class Task:
    """What an executor's Python worker is told."""

    def __init__(self, master: str | None) -> None:
        self.master = master

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self.master if name == "spark.master" else None

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 0

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return 0

    def stageId(self) -> int:  # noqa: N802 - Spark's name
        return 0


def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str | None, **options: str) -> None:
    """Open a writer in the driver's process, which does not know the master, and write in an executor's."""
    writer = BatchWriter(FileSink("files", tmp_path / "out"), FormatOptions.parse(options))
    copy = pickle.loads(pickle.dumps(writer))
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: Task(master))
    copy.commit([copy.write(iter([ROWS]))])


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host"])
def test_a_log_on_a_local_disk_is_refused_by_the_executors_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    options = {"pipeline": "days", "runKey": "monday", "store": str(tmp_path / "log")}
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}.* is on a local disk, but the master is {master}"):
        written(tmp_path, monkeypatch, master, **options)
    assert list((tmp_path / "out").rglob("*.parquet")) == []
    written(tmp_path, monkeypatch, master, **{**options, "store": f"file://{tmp_path}/shared?shared=true"})
    assert [path.name.partition(".")[0] for path in (tmp_path / "shared").iterdir()] == ["days"]


@pytest.mark.parametrize("master", ["local", "local[2]", "local[2,4]", "local-cluster[2,1,1024]", None])
def test_a_decision_log_on_a_local_disk_is_taken_where_all_is_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str | None
) -> None:
    written(tmp_path, monkeypatch, master, pipeline="days", runKey="monday", store=str(tmp_path / "log"))


def test_the_temporary_log_of_a_plain_batch_is_needed_by_this_driver_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, monkeypatch, "yarn")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"onLost": "ignore"}, "option onLost is not one of fail, replay, skip"),
        ({"adopt": "perhaps"}, "option adopt is not true or false"),
        ({"pipeline": "a:b"}, "a:b"),
    ],
)
def test_common_options_that_cannot_be_read_are_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        FormatOptions.parse(options)
    assert FormatOptions.parse({"ONLOST": "Skip", "adopt": "TRUE", "topic": "t"}).settings["adopt"]
