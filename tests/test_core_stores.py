# ruff: noqa: ARG002 - fixtures and overridden methods keep their signatures
from __future__ import annotations

import errno
import os
import re
import resource
import stat
import time
import traceback
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fsspec.config import conf
from fsspec.implementations.memory import MemoryFileSystem
from sqlalchemy.dialects import mysql, postgresql

from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import ConfigurationError, DecisionInDoubtError, LogDamagedError, StoreError
from onceward.core.kit.folders import make_folder
from onceward.core.log import DirectoryStore, EpochInput, LogWriter, MemoryStore, open_store, read, time_limits
from onceward.core.log import writer as log_writer
from onceward.core.log.entries import key_of
from onceward.core.log.objects import CONDITIONAL_PUT, ObjectStore
from onceward.core.log.sql import TABLE, SqlStore, make_durable
from onceward.core.log.view import NONE

from .store_contract import StoreContract, quick

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Dialect
    from sqlalchemy.sql import ClauseElement

    from onceward.core.log import LogStore


class AtomicMemory(MemoryFileSystem):
    """fsspec's memory file system, made safe for threads: it looks and stores in two steps."""

    cachable = False
    guard = Lock()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        with self.guard:
            super().pipe_file(path, value, mode=mode, **kwargs)


@pytest.fixture
def memory() -> Iterator[AtomicMemory]:
    filesystem = AtomicMemory()
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()


@contextmanager
def home_of_somebody() -> Iterator[Path]:
    """A folder of the user who runs the block, below one that he may enter and not read; root becomes nobody for it."""
    root = os.geteuid() == 0
    with TemporaryDirectory() as outer:
        home = Path(outer) / "home"
        home.mkdir()
        if root:
            os.chown(home, 65534, 65534)
        Path(outer).chmod(0o711 if root else 0o311)
        try:
            if root:
                os.seteuid(65534)
            yield home
        finally:
            if root:
                os.seteuid(0)
            Path(outer).chmod(0o700)


def decided_log(store: LogStore) -> None:
    writer = LogWriter(store, "p", quick())
    writer.start()
    writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> LogStore:
        return MemoryStore()


class TestDirectory(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/log"

    @pytest.fixture
    def store(self, url: str) -> LogStore:
        return open_store(url)

    def test_files_left_behind_by_a_crashed_put_are_no_entries(self, store: DirectoryStore):
        (store.path / ".put-0123456789abcdef").write_bytes(b"half an ent")
        decided_log(store)
        assert read(store).decided == 0
        assert store.list_keys() == [key_of(0), key_of(1)]

    def test_they_are_deleted_after_an_hour_by_the_next_writer(self, store: DirectoryStore):
        old, new = store.path / ".put-0123456789abcdef", store.path / ".put-fedcba9876543210"
        for file in (old, new):
            file.write_bytes(b"half an ent")
        hour_ago = time.time() - 4000
        os.utime(old, (hour_ago, hour_ago))
        assert read(store).decided == NONE
        assert old.exists()  # who only looks changes nothing
        decided_log(store)
        assert [file.name for file in store.path.glob(".put-*")] == [new.name]

    def test_files_of_others_are_no_entries(self, store: DirectoryStore):
        (store.path / "README").write_text("not mine")
        decided_log(store)
        assert read(store).tail == 1

    @pytest.mark.parametrize("kept", [0, 1, 20, 100])
    def test_a_truncated_entry_is_an_error_that_names_it(self, store: DirectoryStore, kept: int):
        decided_log(store)
        path = store.path / key_of(1)
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(LogDamagedError, match="entry 1 of the decision log is damaged"):
            read(store)
        with pytest.raises(LogDamagedError, match="entry 1"):
            LogWriter(store, "p", quick()).start()

    def test_a_missing_entry_is_an_error_that_names_it(self, store: DirectoryStore):
        decided_log(store)
        store.delete(key_of(0))
        with pytest.raises(LogDamagedError, match="gap: entry 0 is missing"):
            read(store)

    def test_every_fault_of_the_file_system_is_a_store_error(self, store: DirectoryStore, tmp_path: Path):
        (store.path / key_of(5)).mkdir()
        with pytest.raises(StoreError, match=key_of(5)):
            store.get(key_of(5))
        with pytest.raises(StoreError, match=key_of(5)):
            store.delete(key_of(5))
        (store.path / key_of(5)).rmdir()
        store.path.rmdir()
        for call in (store.list_keys, lambda: store.put_if_absent(key_of(0), b"x")):
            with pytest.raises(StoreError):
                call()
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="cannot make"):
            DirectoryStore(tmp_path / "file")

    def test_a_link_that_fails_leaves_the_put_in_doubt(self, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch):
        def no_link(*_: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", no_link)
        with pytest.raises(StoreError, match="not supported"):
            store.put_if_absent(key_of(0), b"x")

    @pytest.mark.parametrize("there", [False, True], ids=["winner", "loser"])
    def test_bytes_are_synced_before_their_name_and_the_name_before_the_answer(
        self, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, there: bool
    ):
        if there:
            store.put_if_absent(key_of(0), b"x")
        steps: list[str] = []
        fsync, link = os.fsync, os.link

        def synced(handle: int) -> None:
            steps.append(
                "sync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"sync {os.fstat(handle).st_size}"
            )
            fsync(handle)

        def linked(source: Path, target: Path) -> None:
            steps.append("link")
            link(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "link", linked)
        assert store.put_if_absent(key_of(0), b"four") is not there
        assert steps == ["sync 4", "link", "sync folder"]

    def test_a_reader_syncs_the_folder_before_it_acts_on_a_name(
        self, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
    ):
        """Else a power cut takes back an entry that somebody has acted on; its writer may not have synced it yet."""
        store.put_if_absent(key_of(0), b"x")
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
        for call in (store.list_keys, lambda: store.get(key_of(0))):
            synced.clear()
            call()
            assert synced == [store.path.stat().st_ino]

    def test_the_names_of_new_folders_are_durable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
        folder = tmp_path / "a" / "b" / "c"
        make_folder(folder)
        assert synced == [path.stat().st_ino for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")]
        synced.clear()
        make_folder(folder)
        assert synced == []

    def test_a_file_that_cannot_grow_is_not_left_behind(self, store: DirectoryStore):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
        try:
            with pytest.raises(StoreError, match="File too large"):
                store.put_if_absent(key_of(0), bytes(100_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert list(store.path.iterdir()) == []

    @pytest.mark.parametrize("step", ["fsync", "link"])
    def test_a_full_disk_leaves_no_file_behind(self, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, step: str):
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, step, full)
            with pytest.raises(StoreError, match="No space left"):
                store.put_if_absent(key_of(0), b"x")
        assert list(store.path.iterdir()) == []

    def test_parents_that_may_be_entered_and_not_read_are_no_obstacle(self):
        with home_of_somebody() as home:
            decided_log(DirectoryStore(home / "checkpoint" / "log"))
            assert read(DirectoryStore(home / "checkpoint" / "log")).decided == 0

    def test_a_directory_is_shared_only_if_said_so(self, tmp_path: Path):
        assert not open_store(f"{tmp_path}/plain path").shared
        assert not open_store(f"{tmp_path}/why?").shared
        assert open_store(f"file://{tmp_path}/a%20b?shared=true").shared
        assert open_store(f"{tmp_path}/c%20d?shared=true").shared
        assert open_store(f"{tmp_path}/e#f?g?shared=true").shared
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a b", "c%20d", "e#f?g", "plain path", "why?"]
        assert str(tmp_path / "plain path") in open_store(f"{tmp_path}/plain path").describe()


class TestSqlite(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/log.db"

    @pytest.fixture
    def store(self, url: str) -> Iterator[SqlStore]:
        store = open_store(url, pipeline="contract")
        assert isinstance(store, SqlStore)
        yield store
        store.close()

    def test_pipelines_in_one_table_are_kept_apart(self, store: SqlStore, url: str):
        other = SqlStore(url, pipeline="contract-eu")
        assert store.put_if_absent(key_of(0), b"mine")
        assert other.put_if_absent(key_of(0), b"theirs")
        store.delete(key_of(0))
        assert other.list_keys() == [key_of(0)]
        assert store.list_keys() == []
        other.close()

    def test_every_fault_of_the_database_is_a_store_error(self, store: SqlStore):
        with store._engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE onceward_decision_log")
        for call in (
            store.list_keys,
            lambda: store.get(key_of(0)),
            lambda: store.delete(key_of(0)),
            lambda: store.put_if_absent(key_of(0), b""),
        ):
            with pytest.raises(StoreError, match=r"log\.db"):
                call()

    def test_errors_hold_nothing_of_the_value(self, store: SqlStore):
        with store._engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE onceward_decision_log")
        value = b"offsets, handles".upper()  # the traceback shows this line
        with pytest.raises(StoreError, match="no such table") as caught:
            store.put_if_absent(key_of(0), value)
        shown = "".join(traceback.format_exception(caught.value))
        assert value.decode() not in shown
        assert "INSERT" not in shown

    def test_a_database_that_cannot_be_opened_is_a_store_error(self, tmp_path: Path):
        with pytest.raises(StoreError):
            open_store(f"sqlite:///{tmp_path}/no/such/folder/log.db")

    @pytest.mark.parametrize("url", ["postgresql+nodriver://host/db", "sqlite+nothing:///x"])
    def test_an_unusable_url_is_a_configuration_error(self, url: str):
        with pytest.raises(ConfigurationError, match="not a usable database URL"):
            open_store(url)

    def test_e_sqlite_syncs_every_commit_and_the_unlink_of_its_journal(self, store: SqlStore):
        with store._engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3
        assert not store.shared


class Server:
    """A connection to a database server: what it is asked, and what its settings are."""

    def __init__(self, dialect: Dialect, **settings: str) -> None:
        self.dialect = dialect
        self.settings = {"innodb_flush_log_at_trx_commit": "1", "log_bin": "OFF", "sync_binlog": "0", **settings}
        self.said: list[str] = []

    def execute(self, statement: ClauseElement) -> None:
        self.said.append(str(statement.compile(dialect=self.dialect, compile_kwargs={"literal_binds": True})))

    def exec_driver_sql(self, _statement: str) -> list[tuple[str, str]]:
        return list(self.settings.items())


def mariadb() -> Dialect:
    made = mysql.dialect()
    made.name, made.is_mariadb = "mariadb", True  # type: ignore[misc]
    return made


class TestServers:
    """What database servers are asked for, so that an entry which they have acknowledged outlives their crash."""

    def test_e_postgresql_commits_each_entry_synchronously_whatever_the_role_says(self):
        server: Any = Server(postgresql.dialect())
        assert make_durable(server) == ""
        [said] = server.said
        forced = "THEN set_config('synchronous_commit', 'on', true) END"
        assert f"CASE WHEN (current_setting('synchronous_commit') != 'remote_apply') {forced}" in said

    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            ({}, ""),
            ({"innodb_flush_log_at_trx_commit": "3"}, ""),
            ({"innodb_flush_log_at_trx_commit": "0"}, "innodb_flush_log_at_trx_commit is 0"),
            ({"innodb_flush_log_at_trx_commit": "2"}, "innodb_flush_log_at_trx_commit is 2"),
            ({"log_bin": "ON", "sync_binlog": "1"}, ""),
            ({"log_bin": "ON"}, "sync_binlog is 0"),
            ({"wsrep_on": "ON"}, "Galera"),
        ],
    )
    def test_e_a_mariadb_that_acknowledges_too_early_is_refused(self, settings: dict[str, str], why: str):
        server: Any = Server(mariadb(), **settings)
        said = make_durable(server)
        assert why in said
        assert bool(said) is bool(why)

    def test_e_an_entry_is_not_put_where_it_would_not_last(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        store = SqlStore(f"sqlite:///{tmp_path}/log.db", pipeline="p")
        monkeypatch.setattr("onceward.core.log.sql.make_durable", lambda _: "somebody has changed a setting")
        with pytest.raises(StoreError, match=r"cannot write entry .*somebody has changed"):
            store.put_if_absent(key_of(0), b"x")
        assert store.list_keys() == []

    def test_e_names_are_told_apart_by_case_and_a_decision_of_any_size_fits(self):
        kinds = {column.name: column.type.compile(mariadb()) for column in TABLE.columns}
        assert kinds["data"] == "LONGBLOB"
        assert all("ascii_bin" in kinds[name] for name in ("pipeline", "entry"))


class TestMemoryObjects(StoreContract):
    @pytest.fixture(autouse=True)
    def _listed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(CONDITIONAL_PUT, "memory", "fsspec")

    @pytest.fixture
    def store(self, memory: AtomicMemory) -> LogStore:
        return ObjectStore(memory, "/bucket/log/")

    def test_only_listed_file_systems_are_accepted(self, memory: AtomicMemory, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delitem(CONDITIONAL_PUT, "memory")
        with pytest.raises(ConfigurationError, match="no conditional put"):
            ObjectStore(memory, "/bucket/log")

    def test_a_listed_protocol_is_accepted_whatever_its_alias(self, memory: AtomicMemory):
        memory.protocol = ("s3", "s3a")  # type: ignore[misc]
        assert ObjectStore(memory, "/bucket/log").shared

    def test_the_probe_refuses_a_put_that_only_pretends_to_be_conditional(self, memory: AtomicMemory):
        class Liar(AtomicMemory):
            def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
                super().pipe_file(path, value, mode="overwrite", **kwargs)

        with pytest.raises(ConfigurationError, match="let 2 of two concurrent writers win"):
            ObjectStore(Liar(), "/bucket/log")

    def test_every_fault_of_the_file_system_is_a_store_error(self, memory: AtomicMemory):
        store = ObjectStore(memory, "/bucket/log")

        def broken(*_: object, **__: object) -> None:
            raise ConnectionResetError("reset by peer")

        memory.pipe_file = memory.cat_file = memory.ls = memory.rm_file = broken  # type: ignore[assignment]
        for call in (
            store.list_keys,
            lambda: store.get(key_of(0)),
            lambda: store.delete(key_of(0)),
            lambda: store.put_if_absent(key_of(0), b""),
        ):
            with pytest.raises(StoreError, match="reset by peer"):
                call()

    def test_a_client_whose_credentials_are_refused_is_replaced_by_one_that_reads_them_again(
        self, memory: AtomicMemory, monkeypatch: pytest.MonkeyPatch
    ):
        store = ObjectStore(memory, "/bucket/log")
        now = {"key": "first"}
        put = AtomicMemory.pipe_file

        def signed(self: AtomicMemory, *arguments: Any, **options: Any) -> None:
            if self.storage_options.get("key") != now["key"]:
                raise PermissionError("The provided token has expired.")
            put(self, *arguments, **options)

        monkeypatch.setattr(AtomicMemory, "pipe_file", signed)
        with pytest.raises(StoreError, match=r"token has expired\. The store refuses the credentials"):
            store.put_if_absent(key_of(0), b"x")
        assert store.list_keys() == []
        monkeypatch.setitem(conf, "memory", {"key": "first"})
        assert store.put_if_absent(key_of(0), b"x")
        now["key"] = "second"
        monkeypatch.setitem(conf, "memory", {"key": "second"})
        assert store.put_if_absent(key_of(1), b"x")
        assert not store.put_if_absent(key_of(1), b"y")

    def test_a_call_that_gets_no_answer_ends_in_time_and_may_land_later(
        self, store: LogStore, memory: AtomicMemory, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(time_limits, "ANSWER_SECONDS", 0.2)
        monkeypatch.setattr(log_writer, "ANSWER_SECONDS", 0.2)
        writer = LogWriter(store, "p", quick(tries=100))
        writer.start()
        answers, put = Event(), memory.pipe_file

        def silent(*arguments: object, **options: object) -> None:
            answers.wait(20)
            put(*arguments, **options)  # type: ignore[arg-type]

        memory.pipe_file = silent  # type: ignore[method-assign]
        began = time.monotonic()
        with pytest.raises(DecisionInDoubtError, match=r"may or may not be written.*has not answered for 0\.2 s"):
            writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        assert time.monotonic() - began < 5
        answers.set()
        until = time.monotonic() + 10
        while read(store).decided != 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert read(store).decided == 0

    def test_an_error_of_the_call_itself_is_not_taken_for_silence(self):
        def late() -> None:
            raise TimeoutError("of a driver")

        with pytest.raises(TimeoutError, match="of a driver"):
            time_limits.in_time(late, "a store")

    def test_the_probe_refuses_no_store_whose_answers_were_lost_so_that_its_client_repeated_both_puts(
        self, memory: AtomicMemory
    ):
        put = memory.pipe_file

        def repeated(*arguments: object, **options: object) -> None:
            put(*arguments, **options)  # type: ignore[arg-type]
            put(*arguments, **options)  # type: ignore[arg-type]

        memory.pipe_file = repeated  # type: ignore[method-assign]
        store = ObjectStore(memory, "/bucket/log")
        assert not memory.store
        memory.pipe_file = put  # type: ignore[method-assign]
        assert store.put_if_absent(key_of(0), b"")

    def test_the_probe_leaves_nothing_behind(self, memory: AtomicMemory):
        ObjectStore(memory, "/bucket/log")
        assert not memory.store

    def test_the_probe_leaves_nothing_behind_when_a_put_failed(self, memory: AtomicMemory):
        put, calls = memory.pipe_file, []

        def second_fails(*arguments: object, **options: object) -> None:
            calls.append(arguments)
            if len(calls) == 2:
                raise ConnectionResetError("reset by peer")
            put(*arguments, **options)  # type: ignore[arg-type]

        memory.pipe_file = second_fails  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="reset by peer"):
            ObjectStore(memory, "/bucket/log")
        assert not memory.store

    @pytest.mark.parametrize(("refusals", "stored"), [(1, True), (100, False)])
    def test_a_conflict_with_another_put_is_tried_again(self, memory: AtomicMemory, refusals: int, stored: bool):
        store = ObjectStore(memory, "/bucket/log")
        put, left = memory.pipe_file, [refusals]

        def conflicts(*arguments: object, **options: object) -> None:
            left[0] -= 1
            if left[0] >= 0:
                cause = Exception()
                cause.response = {"ResponseMetadata": {"HTTPStatusCode": 409}}  # type: ignore[attr-defined]
                raise OSError("conflict") from cause
            put(*arguments, **options)  # type: ignore[arg-type]

        memory.pipe_file = conflicts  # type: ignore[method-assign]
        with (
            nullcontext() if stored else pytest.raises(StoreError, match="conflicted with another writer's put 5 times")
        ):
            assert store.put_if_absent(key_of(0), b"entry")
        assert store.get(key_of(0)) == (b"entry" if stored else None)


@pytest.mark.parametrize("url", ["memory://log", "http://host/log", "kafka://host"])
def test_a_url_that_cannot_hold_a_log_is_a_configuration_error(url: str):
    with pytest.raises(ConfigurationError, match="cannot hold a decision log"):
        open_store(url)


def test_a_folder_may_be_given_as_a_path(tmp_path: Path):
    assert open_store(tmp_path / "log").describe() == open_store(str(tmp_path / "log")).describe()


@pytest.mark.parametrize("url", ["s3://key:s3/cr@et@bucket/x", "gs://:s3cret@b/x", "s3://b/x?secret=s3cret"])
def test_a_login_in_a_buckets_url_is_refused_and_not_repeated(url: str):
    for make in (open_store, CheckpointStorage):
        with pytest.raises(ConfigurationError, match="FSSPEC_S3_SECRET") as caught:
            make(url)
        assert not re.search("s3/?cr|et@", str(caught.value))


def test_an_object_store_lives_under_its_pipelines_name(memory: AtomicMemory, monkeypatch: pytest.MonkeyPatch):
    memory.protocol = "s3"  # type: ignore[misc]
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda _: (memory, "/bucket/logs/"))
    store = open_store("s3://bucket/logs/", pipeline="orders")
    assert isinstance(store, ObjectStore)
    assert store.prefix == "/bucket/logs/orders"


@pytest.mark.parametrize(
    ("url", "error", "package"),
    [
        ("s3://bucket/log", ImportError("Install s3fs to access S3"), "s3fs"),
        ("abfss://logs@account.dfs.core.windows.net/log", ValueError("Protocol not known: abfss"), "adlfs"),
    ],
)
def test_an_object_store_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, url: str, error: Exception, package: str
):
    def missing(_: str) -> None:
        raise error

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(ConfigurationError, match=rf"{error}.*pip install fsspec {package}"):
        open_store(url)
