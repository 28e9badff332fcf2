"""HttpSink and servers that redirect, compress their answers, answer a byte at a time or take a part of the rows."""

from __future__ import annotations

import gzip
import logging
import socket
import threading
import time
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.connectors.http.client import HttpSettings, clients
from onceward.connectors.http.sink import HttpSink
from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import RetryableSinkError, SinkError

from .http_kit import Inbox, Plan
from .sink_kit import prepared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "open-sesame-1234"
WORDS = b'{"title": "no such tenant"}'


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    with inbox.up():
        yield inbox


def make(folder: Path, url: str, **settings: Any) -> HttpSink:
    return HttpSink("hook", folder / "log", url=url, rows_per_send=2, server_honors_keys=True, **settings)


@contextmanager
def answering(pieces: list[bytes], pause: float) -> Iterator[str]:
    """Serve one answer to each connection, in pieces with pauses between them; its URL."""
    ended = threading.Event()

    def answer(client: socket.socket) -> None:
        with suppress(OSError), client:
            request = b""
            while b"\r\n\r\n" not in request:
                request += client.recv(65536)
            for piece in pieces:
                client.sendall(piece)
                if ended.wait(pause):
                    return

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def one_by_one(answer: bytes) -> list[bytes]:
    return [answer[at : at + 1] for at in range(len(answer))]


@pytest.mark.parametrize("elsewhere", ["another host", "this host"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_named_without_its_secrets(
    tmp_path: Path, inbox: Inbox, status: int, elsewhere: str
) -> None:
    other = Inbox()
    with other.up():
        sink = make(tmp_path, inbox.url, token=SECRET)
        place = f"{other.url}/{SECRET}?key={SECRET}" if elsewhere == "another host" else f"/{SECRET}"
        origin = (other if elsewhere == "another host" else inbox).url.removesuffix("/hook")
        inbox.plans = [Plan(take=False, status=status, headers=(("Location", place),))]
        committable = prepared(sink, range(2))
        with pytest.raises(
            SinkError, match=f"answers {status} to a delivery, a redirect to {origin}/…, which"
        ) as caught:
            sink.commit(committable)
        assert not isinstance(caught.value, RetryableSinkError)
        assert SECRET not in str(caught.value)
        assert other.requests == []
        assert len(inbox.posts) == 1
        assert sink.commit(committable).settled, "once it is mended"
        assert inbox.numbers == [0, 1]


def test_a_start_warns_of_a_server_that_redirects(
    inbox: Inbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    moved = b"HTTP/1.1 301 Moved\r\nLocation: https://example.org/a\r\nContent-Length: 0\r\n\r\n"
    with answering([moved], 0) as url:
        make(tmp_path, url).validate(pa.schema([("n", pa.int64())]))
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "redirects OPTIONS to https://example.org/…" in record.getMessage()
    caplog.clear()
    make(tmp_path, inbox.url).validate(pa.schema([("n", pa.int64())]))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("encoding", "body", "shown"),
    [
        ("gzip", gzip.compress(WORDS), WORDS.decode()),
        ("GZIP", gzip.compress(WORDS), WORDS.decode()),
        ("deflate", zlib.compress(WORDS), WORDS.decode()),
        ("deflate", zlib.compress(WORDS, wbits=-15), WORDS.decode()),
        ("gzip", gzip.compress(WORDS)[:-9], WORDS.decode()),
        ("identity", WORDS, WORDS.decode()),
        ("br", b"\x8b\x01\x80hello\x03", ""),
        ("gzip", b"\x1f\x8bno", ""),
        ("gzip", gzip.compress(bytes(10**7)), "\0"),
    ],
    ids=["gzip", "capitals", "zlib", "deflate", "cut", "identity", "unknown", "damaged", "many zeros"],
)
def test_a_compressed_answer_is_read(inbox: Inbox, tmp_path: Path, encoding: str, body: bytes, shown: str) -> None:
    sink = make(tmp_path, inbox.url)
    inbox.plans = [Plan(take=False, status=400, headers=(("Content-Encoding", encoding),), body=body)]
    with pytest.raises(SinkError) as caught:
        sink.commit(prepared(sink, range(2)))
    assert (f"answers 400 to a delivery ({shown}" if shown else "answers 400 to a delivery.") in str(caught.value)
    assert inbox.posts[0].headers["accept-encoding"] == "identity"


def test_a_secret_in_a_compressed_answer_is_not_shown(inbox: Inbox, tmp_path: Path) -> None:
    sink = make(tmp_path, inbox.url, token=SECRET)
    body = gzip.compress(f"bad token {SECRET}".encode())
    inbox.plans = [Plan(take=False, status=503, headers=(("Content-Encoding", "gzip"),), body=body)]
    outcome = sink.commit(prepared(sink, range(2)))
    assert outcome.detail is not None
    assert "bad token ***" in outcome.detail


def test_headers_that_come_a_byte_at_a_time_are_waited_for_no_longer_than_the_timeout(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Padding: " + b"x" * 3000 + b"\r\n\r\n"
    with answering(one_by_one(answer), 0.02) as url:
        sink = make(tmp_path, url, timeout=0.3)
        committable = prepared(sink, range(2))
        for _ in range(6):  # each leaves no connection behind that counts
            began = time.monotonic()
            outcome = sink.commit(committable)
            assert outcome.status is CommitStatus.RETRY_LATER
            assert "its headers were not complete after 0.3 s" in str(outcome.detail)
            assert time.monotonic() - began < 5


def test_an_answer_that_comes_a_byte_at_a_time_in_time_is_an_answer(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n" + b"x" * 400
    with answering(one_by_one(answer), 0.005) as url:
        sink = make(tmp_path, url, timeout=20)
        assert sink.commit(prepared(sink, range(2))).status is CommitStatus.COMMITTED


def test_a_slow_answer_to_one_thread_does_not_end_that_of_another(inbox: Inbox) -> None:
    client = clients.get(HttpSettings(inbox.url, timeout=20.0))
    inbox.hang.clear()
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(client.request("GET", {}).status)) for _ in range(6)]
    for thread in threads:
        thread.start()
    inbox.hang.set()
    for thread in threads:
        thread.join()
    assert answers == [405] * 6


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (206, "took the delivery for a question"),
        (207, "does not say that it took all rows"),
        (413, "take larger requests"),
    ],
)
def test_a_server_that_may_have_taken_a_part_has_not_taken_a_delivery(
    inbox: Inbox, tmp_path: Path, status: int, says: str
) -> None:
    sink = make(tmp_path, inbox.url)
    inbox.plans = [Plan(take=False, status=status, body=b"[201, 422]")]
    committable = prepared(sink, range(4))
    with pytest.raises(SinkError, match=rf"answers {status} to a delivery \(\[201, 422\]\).*{says}"):
        sink.commit(committable)
    assert len(inbox.posts) == 1
    assert sink.commit(committable).settled
    assert inbox.posts[0].key == inbox.posts[1].key
    assert inbox.numbers == [0, 1, 2, 3]
