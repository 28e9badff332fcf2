"""A decision log and checkpoints in an S3 server that loses answers, answers late, or whose credentials expire."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fsspec
import pytest
from tests.engine_kit import RunningSum, Slowly, numbers, pipeline, reach, sums
from tests.sink_kit import Target, TargetSink

from onceward.core import CheckpointConfig, FileBackend, RestartStrategy
from onceward.core.checkpoint import CommitPolicy
from onceward.core.contract.policy import Backoff
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import DecisionInDoubtError, StateDamagedError, StateError, StoreError
from onceward.core.log import EpochInput, LogWriter, open_store, time_limits
from onceward.core.log.objects import ObjectStore
from onceward.testing.proxy import Proxy

from .kafka_kit import eventually
from .s3_kit import BUCKET, KEY, RENEWED, S3Server

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow
ROWS = numbers(3000, keys=7)
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


class PutProxy(Proxy):
    """Loses all answers once a put has been sent, or delays them, until it is mended.

    Clients send the head of a put first, and its body when the server says "100 Continue".
    """

    lose_next = False
    delay_next = 0.0

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        read, has_sent_head = source.read, False

        async def watched(size: int) -> bytes:
            nonlocal has_sent_head
            data = await read(size)
            is_head = data.startswith(b"PUT ")
            if is_head and self.delay_next:
                await self._answer(seconds=self.delay_next)
            if self.lose_next and data and (has_sent_head or (is_head and not data.endswith(b"\r\n\r\n"))):
                self.lose_next = False
                await self._answer(part=0)
            has_sent_head = is_head
            return data

        if gate is self._requests:
            source.read = watched  # type: ignore[method-assign,assignment]
        await super()._pump(source, sink, gate)


class ExpiringProxy(Proxy):
    """Answers as Amazon S3 does to whoever signs with a key that has expired. Nothing of it reaches the server."""

    expired = ""
    refused = 0
    status = "403 Forbidden"
    spared = 0

    def expire(self, key: str, *, spare: int = 0) -> None:
        """Refuse the key from now on, or after so many more requests."""
        self.spared, self.expired = spare, key

    async def _connect(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        read = client.read

        async def watched(size: int) -> bytes:
            data = await read(size)
            if not self.expired or f"Credential={self.expired}/".encode() not in data:
                return data
            if self.spared:
                self.spared -= 1
                return data
            self.refused += 1
            body = b"" if data.startswith(b"HEAD ") else EXPIRED
            head = f"HTTP/1.1 {self.status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
            to_client.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            await to_client.drain()
            return b""

        client.read = watched  # type: ignore[method-assign,assignment]
        await super()._connect(client, to_client)


class Place:
    """A folder of the bucket, seen through a proxy, and directly."""

    def __init__(self, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.proxy = PutProxy("127.0.0.1", server.ports["s3.port"])
        self.path = f"{BUCKET}/{uuid4().hex}"
        through = {**server.options, "endpoint_url": f"http://{self.proxy.address}"}
        monkeypatch.setitem(fsspec.config.conf, "s3", through)
        self.direct = fsspec.filesystem("s3", **server.options, skip_instance_cache=True)

    @property
    def url(self) -> str:
        return f"s3://{self.path}"

    def names(self) -> list[str]:
        """Return what is really there."""
        self.direct.invalidate_cache()
        files = map(str, self.direct.find(self.path))  # SeaweedFS lists the folder itself, too
        return [name.removeprefix(f"{self.path}/") for name in files if name.startswith(f"{self.path}/")]

    def losing_answers(self, call: Callable[[], Any], until: Callable[[], bool]) -> Any:
        """Make a call of which answers are lost from its first put on, until that has taken effect."""
        self.proxy.lose_next = True
        return self.during(call, until, self.proxy.mend)

    def during(self, call: Callable[[], Any], until: Callable[[], bool], heal: Callable[[], None]) -> Any:
        answers: list[Any] = []

        def work() -> None:
            try:
                answers.append(call())
            except BaseException as error:  # noqa: BLE001 - raised below
                answers.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            eventually(until, "the call took effect")
        finally:
            heal()
        thread.join(120)
        (answer,) = answers
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")).running() as server:
        yield server


@pytest.fixture
def place(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(s3, monkeypatch)
    try:
        yield made
    finally:
        made.proxy.close()


def started(place: Place | Rented) -> LogWriter:
    writer = LogWriter(open_store(place.url, pipeline="orders"), "orders", CommitPolicy())
    writer.start()
    return writer


def decide(writer: LogWriter, epoch: int) -> None:
    writer.decide(epoch, [], sinks=["table"], epoch_input=EpochInput(query="q", digest=f"{epoch}"))


def test_a_decision_whose_answer_was_lost_is_the_writer_s_own_and_stands_once(place: Place) -> None:
    writer = started(place)
    for epoch in range(3):
        before = len(place.names())
        place.losing_answers(
            lambda epoch=epoch: decide(writer, epoch), lambda before=before: len(place.names()) > before
        )
        assert len(place.names()) == before + 1
        writer.complete(epoch)
    assert LogWriter(open_store(place.url, pipeline="orders"), "orders", CommitPolicy()).look().completed == 2


def test_a_start_whose_probe_s_answers_were_lost_is_not_refused(place: Place) -> None:
    """A client that repeats a put finds its own file, so neither of the two concurrent puts has won."""
    patient = {**fsspec.config.conf["s3"], "config_kwargs": {"retries": {"total_max_attempts": 8}}}
    filesystem = fsspec.filesystem("s3", **patient, skip_instance_cache=True)
    store = place.losing_answers(
        lambda: ObjectStore(filesystem, place.path), lambda: any(".probe-" in name for name in place.names())
    )
    assert place.names() == []
    assert store.put_if_absent("a", b"1")
    assert not store.put_if_absent("a", b"2")


def test_answers_that_come_late_change_nothing(place: Place) -> None:
    place.proxy.delay(0.4)
    writer = started(place)
    decide(writer, 0)
    writer.complete(0)
    assert writer.look().completed == 0
    storage = CheckpointStorage(f"{place.url}/checkpoints")
    ref = storage.write("chk-1-0/a", [b"x" * 100_000])
    assert storage.read(ref) == b"x" * 100_000


def test_a_decision_that_lands_after_its_time_is_found_and_finished(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put is in doubt; the next writer, whose START comes behind it, finishes the decision."""
    writer = started(place)
    monkeypatch.setattr(time_limits, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr("onceward.core.log.writer.ANSWER_SECONDS", 2.0)
    place.proxy.delay_next = 6.0
    before = len(place.names())
    with pytest.raises(DecisionInDoubtError, match="has not answered for 2 s"):
        decide(writer, 0)
    assert len(place.names()) == before
    eventually(lambda: len(place.names()) > before, "the put lands")
    monkeypatch.undo()
    monkeypatch.setitem(fsspec.config.conf, "s3", place.server.options)
    following = LogWriter(open_store(place.url, pipeline="orders"), "orders", CommitPolicy())
    following.start()
    assert following.view.newest is not None
    assert following.view.completed is None or following.view.completed < 0


def test_credentials_that_expire_stop_a_writer_without_a_loss_until_they_are_valid_again(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = S3Server(tmp_path_factory.mktemp("expiring"))
    with server.running():
        place = Place(server, monkeypatch)
        try:
            writer = started(place)
            decide(writer, 0)
            writer.complete(0)
            storage = CheckpointStorage(f"{place.url}/checkpoints")
            ref = storage.write("chk-1-0/a", [b"kept"])
            valid = server.secret
            server.change_secret("another-secret")
            with pytest.raises(StoreError) as caught:
                writer.store.get("00000000000000000000")
            with pytest.raises(StateError):
                storage.read(ref)
            with pytest.raises(StateError):
                storage.write("chk-2-0/a", [b"new"])
            assert valid not in str(caught.value)
            refused = threading.Event()
            get = writer.store.get

            def noted(key: str) -> bytes | None:
                refused.set()
                return get(key)

            writer.store.get = noted  # type: ignore[method-assign]
            place.during(lambda: decide(writer, 1), refused.is_set, lambda: server.change_secret(valid))
            writer.complete(1)
            assert writer.look().completed == 1
            assert storage.read(ref) == b"kept"
        finally:
            place.proxy.close()


class Rented:
    """Credentials in the file that the clients of Amazon read, and a proxy before which they expire."""

    def __init__(self, server: S3Server, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.server, self.file = server, folder / "credentials"
        self.proxy = ExpiringProxy("127.0.0.1", server.ports["s3.port"])
        self.renew(KEY)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(self.file))
        config = {"endpoint_url": f"http://{self.proxy.address}", "config_kwargs": server.options["config_kwargs"]}
        monkeypatch.setitem(fsspec.config.conf, "s3", config)
        self.url = f"s3://{BUCKET}/{uuid4().hex}"

    def renew(self, key: str) -> None:
        self.file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key={self.server.secret}\n")


@pytest.fixture
def rented(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rented]:
    made = Rented(s3, monkeypatch, tmp_path)
    try:
        yield made
    finally:
        made.proxy.close()


@pytest.mark.parametrize("status", ["403 Forbidden", "400 Bad Request"])
def test_expired_credentials_are_named_and_the_next_call_uses_those_that_were_renewed(
    rented: Rented, status: str
) -> None:
    rented.proxy.status = status
    store = open_store(rented.url, pipeline="orders")
    writer = LogWriter(store, "orders", CommitPolicy(puts=Backoff(attempts=2)))
    writer.start()
    decide(writer, 0)
    writer.complete(0)
    storage = CheckpointStorage(f"{rented.url}/checkpoints")
    ref = storage.write("chk-1-0/a", [b"kept"])
    before = store.list_keys()
    rented.proxy.expire(KEY)
    calls: list[Callable[[], object]] = [
        store.list_keys,
        lambda: store.get(before[0]),
        lambda: store.put_if_absent("another", b""),
        lambda: storage.read(ref),
        lambda: storage.read_if_there(ref.path),
        lambda: storage.write("chk-2-0/a", [b"new"]),
        storage.names,
        storage.walk,
        lambda: open_store(rented.url, pipeline="orders"),
    ]
    for call in calls:
        with pytest.raises((StoreError, StateError), match="refuses the credentials") as caught:
            call()
        assert not isinstance(caught.value, StateDamagedError)  # whose file would be taken for lost, or deleted
    with pytest.raises(DecisionInDoubtError, match="refuses the credentials"):
        decide(writer, 1)
    rented.renew(RENEWED)
    assert store.list_keys() == before
    assert storage.read(ref) == b"kept"
    following = LogWriter(open_store(rented.url, pipeline="orders"), "orders", CommitPolicy())
    following.start()
    decide(following, 1)
    following.complete(1)
    assert following.look().completed == 1
    assert storage.write("chk-2-0/a", [b"new"])


def test_nobody_notices_credentials_that_were_renewed_before_they_expired(rented: Rented) -> None:
    writer = started(rented)
    storage = CheckpointStorage(f"{rented.url}/checkpoints")
    rented.renew(RENEWED)
    rented.proxy.expire(KEY)
    decide(writer, 0)
    writer.complete(0)
    assert writer.look().completed == 0
    assert storage.read(storage.write("chk-1-0/a", [b"kept"])) == b"kept"
    assert rented.proxy.refused


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 8, 13, 21])
def test_a_pipeline_whose_credentials_expire_while_it_runs_goes_on_once_they_are_renewed(
    rented: Rented, after: int
) -> None:
    """Its log and its state are in the store; nothing is written twice, lost, or deleted."""
    target, source = Target(), Slowly(ROWS, batch_rows=100)
    p = pipeline(
        store=f"{rented.url}/log",
        backend=FileBackend(f"{rented.url}/state"),
        checkpointing=CheckpointConfig(interval=0.2),
        restart=RestartStrategy.fixed_delay(attempts=1000, delay=0.2),
    )
    p.source(source, uid="numbers").key_by("k").process(RunningSum(), uid="sum").sink(TargetSink(target))
    job = p.start()
    reach(source, job, 3)
    job.checkpoint(timeout=60)
    rented.proxy.expire(KEY, spare=after)
    source.let(5)
    eventually(lambda: rented.proxy.refused > 5 and job.restarts > 0, "the store refuses", seconds=60)
    rented.renew(RENEWED)
    source.let(100)
    assert p.wait(60)
    assert target.counts("n") == Counter(range(3000))
    assert {row["n"]: row["sum"] for row in target.rows} == sums(ROWS)
    assert target.prepared == {}
