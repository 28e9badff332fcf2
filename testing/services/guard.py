"""Kill a service when the process that owns it is gone, however it went.

Run as a program of its own: `python guard.py PID CREATED`. Its standard input is a pipe whose other end only the
owner holds, so that end of file means that the owner stopped the service, or died, be it by SIGKILL.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import psutil

SAME_PROCESS_WITHIN = 5.0
"""Seconds by which a process's creation time may seem to move when the system's clock is corrected."""


def find_process(pid: int, created: float) -> psutil.Process | None:
    """Return the live process with this id and creation time (seconds since 1970), if it still is the same one."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or abs(process.create_time() - created) > SAME_PROCESS_WITHIN:
            return None
    except psutil.NoSuchProcess:
        return None
    return process


def kill_tree(process: psutil.Process) -> None:
    """Kill a process and all its descendants (SIGKILL); return when all are gone.

    PostgreSQL's children lead process groups of their own, so that a signal to the group would not reach them.
    """
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)


def main(pid: int, created: float) -> None:
    """Wait for the end of standard input, then kill the process if it still runs."""
    sys.stdin.read()
    process = find_process(pid, created)
    if process is not None:
        kill_tree(process)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
