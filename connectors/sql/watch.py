"""A time limit for answers, where the driver has none: a lost answer is an error then, and not a hang."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def cut_after(fileno: Callable[[], int], seconds: float) -> Iterator[None]:
    """Shut the socket down if the block takes longer, which wakes whoever waits for an answer on it.

    Args:
        fileno: Gives the socket's file descriptor; raises if it is closed.
        seconds: For the whole block.
    """
    lock, over = threading.Lock(), threading.Event()

    def cut() -> None:
        with lock:
            if over.is_set():
                return
            # A closed connection raises the driver's own error here.
            with suppress(Exception), socket.socket(fileno=os.dup(fileno())) as link:
                link.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over.set()
        timer.cancel()
