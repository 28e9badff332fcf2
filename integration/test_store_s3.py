"""A decision log in an S3 server (SeaweedFS) keeps the contract of every store."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from onceward.connectors.spark.savepoints.creation import create_savepoint
from onceward.connectors.spark.savepoints.manifest import delete_savepoint, savepoints
from onceward.connectors.spark.savepoints.restore import plan_restore, restore_savepoint
from onceward.core.checkpoint import CommitPolicy
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import EpochConflictError
from onceward.core.log import EpochInput, LogWriter, open_store
from onceward.core.operations.log_locations import open_log

from .s3_kit import S3Server, s3, url
from .simulator_kit import store_contract

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.core.log import LogStore

__all__ = ["s3", "url"]


@pytest.fixture
def store(url: str) -> LogStore:
    return open_store(url, pipeline="contract")


def test_a_query_moves_with_its_log_into_an_object_store_and_back(url: str, tmp_path: Path) -> None:
    """Its files are stood in for: no jar here lets Spark itself write to S3."""
    old, new, policy = tmp_path / "old", tmp_path / "new", CommitPolicy()
    writer = LogWriter(open_store(str(old / "onceward")), "orders", policy)
    writer.start()
    (old / "metadata").write_text('{"id": "query"}')
    for folder in ("offsets", "commits"):
        (old / folder).mkdir()
        (old / folder / "0").write_text("v1")
    about = EpochInput(query="query", digest=hashlib.sha256(b"v1").hexdigest())
    writer.decide(0, [], sinks=["table"], epoch_input=about)
    writer.complete(0)
    places = [(str(old), f"{url}/query"), (f"{url}/query", str(new))]
    for (here, there), retire in zip(places, [False, True], strict=True):
        save = f"{url}/saves/{retire}"
        log = open_log(here, "orders", writing=True)
        create_savepoint(here, save, pipeline="orders", retire=retire, quiet=0.0)
        restore_savepoint(plan_restore(save, there))
        with pytest.raises(EpochConflictError, match="has ended here"):
            LogWriter(log.store, "orders", policy).start()
        assert open_log(there, "orders").view.finished == log.view.finished
        assert CheckpointStorage(there).walk().keys() >= {"metadata", "offsets/0", "commits/0"}
    LogWriter(open_store(str(new / "onceward")), "orders", policy).start()
    assert [(one.kind, one.retired) for one in savepoints(f"{url}/saves")] == [("spark", False), ("spark", True)]
    delete_savepoint(f"{url}/saves/True")
    assert CheckpointStorage(f"{url}/saves/True").walk() == {}


class TestS3(store_contract.ServerStoreContract):
    @pytest.fixture
    def url(self, url: str) -> str:
        return url

    @pytest.fixture
    def store_server(self, s3: S3Server) -> S3Server:
        return s3
