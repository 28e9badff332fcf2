"""A decision log and checkpoints in an S3 server that loses answers, answers late, or whose credentials expire."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fsspec
import pytest

from onceward.core.checkpoint import CommitPolicy
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import DecisionInDoubtError, StateError, StoreError
from onceward.core.log import EpochInput, LogWriter, bounded, open_store
from onceward.core.log.objects import ObjectStore
from onceward.testing.proxy import Proxy

from .kafka_kit import eventually
from .s3_kit import BUCKET, S3Server

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow


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


def started(place: Place) -> LogWriter:
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
    monkeypatch.setattr(bounded, "ANSWER_SECONDS", 2.0)
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
