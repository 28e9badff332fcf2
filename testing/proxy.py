"""A TCP proxy between clients and a service, whose network can be cut.

What a client meets when a network is cut: first silence, since nobody tells it; its requests may still arrive while
their answers are lost. In the end its connections are found dead, and new ones are refused until the network heals.
A network that only stalls, and then delivers everything late, looks like a paused server.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from .machine import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Coroutine

_CHUNK: Final = 65_536
_REST_SECONDS: Final = 0.02
"""More than asyncio needs to accept a connection, or to close its socket."""
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)
"""Closing sends RST: the peer must not take the end of a cut connection for an orderly one."""


class Proxy:
    """Forwards TCP connections from a port of the loopback address, until it is told to cut them.

    It runs in a thread of its own. The methods may be called from any other, and return when they have taken effect.

    Args:
        host: Host of the service.
        port: Port of the service.
        listen: The port for clients; default: a free one.
    """

    def __init__(self, host: str, port: int, listen: int | None = None) -> None:
        self._target = host, port
        self.port = listen or free_port()
        self.answered = 0
        """Bytes of answers that were delivered."""
        self._connections: set[asyncio.Task[None]] = set()
        self._requests, self._answers = asyncio.Event(), asyncio.Event()
        self._part: int | None = None
        self._seconds = 0.0
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.mend()

    @property
    def address(self) -> str:
        """The address for clients, `host:port`."""
        return f"{LOOPBACK}:{self.port}"

    def cut(self, *, requests: bool = False) -> None:
        """Deliver nothing more on any connection, and tell nobody.

        Args:
            requests: True if what clients send still arrives, so that only the answers are lost.
        """
        self._do(self._open(requests=requests, answers=False))

    def forget(self) -> None:
        """Deliver nothing more on the open connections, for ever, and tell nobody; new ones work.

        So does a firewall, or a NAT gateway, that has dropped connections which were idle for too long.
        """
        self._do(self._forget())

    def refuse(self) -> None:
        """Reset all connections, with the bytes that were not delivered, and refuse new ones."""
        self._do(self._refuse())

    def truncate(self) -> None:
        """Reset each connection in the middle of its next answer, of which half of the bytes are delivered."""
        self._do(self._answer(part=2))

    def drop_answers(self) -> None:
        """Reset each connection when its next answer comes, of which nothing is delivered."""
        self._do(self._answer(part=0))

    def delay(self, seconds: float) -> None:
        """Deliver each part of an answer so many seconds late."""
        self._do(self._answer(seconds=seconds))

    def mend(self) -> None:
        """Accept connections again, and deliver the bytes that the open ones hold."""
        self._do(self._mend())

    def lead_to(self, host: str, port: int) -> None:
        """Lead new connections to another server, as a name does after a failover; the open ones stay."""
        self._target = host, port

    def close(self) -> None:
        """Reset all connections and end the thread."""
        self.refuse()
        self._do(asyncio.sleep(_REST_SECONDS))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self, *, requests: bool, answers: bool) -> None:
        for gate, is_open in ((self._requests, requests), (self._answers, answers)):
            gate.set() if is_open else gate.clear()

    async def _answer(self, *, part: int | None = None, seconds: float = 0) -> None:
        self._part, self._seconds = part, seconds

    async def _forget(self) -> None:
        await self._open(requests=False, answers=False)
        self._requests, self._answers = asyncio.Event(), asyncio.Event()
        await self._open(requests=True, answers=True)

    async def _refuse(self) -> None:
        if self._server is not None:
            for listener in self._server.sockets:
                self._loop.remove_reader(listener.fileno())
            await asyncio.sleep(_REST_SECONDS)  # asyncio leaks a connection whose server is closed while it accepts
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _mend(self) -> None:
        await self._open(requests=True, answers=True)
        await self._answer()
        if self._server is None:
            self._server = await asyncio.start_server(self._connect, LOOPBACK, self.port)

    async def _connect(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio calls it in a task
        self._connections.add(task)
        writers = [to_client]
        try:
            if self._server is None:
                raise ConnectionRefusedError  # accepted just before the network was cut
            service, to_service = await asyncio.open_connection(*self._target)
            writers.append(to_service)
            both = (self._pump(client, to_service, self._requests), self._pump(service, to_client, self._answers))
            await _first_of(*both)
        except (OSError, asyncio.CancelledError):
            for writer in writers:
                _reset(writer)
        finally:
            self._connections.discard(task)
            for writer in writers:
                writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        while data := await source.read(_CHUNK):
            await gate.wait()
            if gate is self._answers:
                await asyncio.sleep(self._seconds)
                if self._part is not None:
                    sink.write(data[: len(data) // self._part] if self._part else b"")
                    await sink.drain()
                    await asyncio.sleep(_REST_SECONDS)  # a reset would overtake what is on its way
                    raise ConnectionResetError
                self.answered += len(data)
            sink.write(data)
            await sink.drain()
        await gate.wait()  # the end of a connection is a packet, too


async def _first_of(*pumps: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    writer.transport.abort()
