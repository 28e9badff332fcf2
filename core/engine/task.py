"""A task: one subtask of one operator, between its input gate and its outputs.

It works in steps that never wait: threads and the simulator call `step` alike. What a barrier does, in this order: the
state is frozen (synchronous part) and the barrier is passed on, in one step; then the state is written out and
acknowledged while rows go on (asynchronous part). A task that cannot freeze its state sends a cancel marker instead of
the barrier and goes on; a sink that cannot prepare fails the run, for its rows are behind the sources' positions.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from ..errors import OncewardError, StateError, named_text_of, text_of
from ..kit.pieces import PIECE_BYTES
from ..log.note_kinds import TaskRecord
from .batch_sizing import FIRST_ROWS, JOINED_ROWS, MOST_ROWS, WORK_SECONDS, Pace, even_part
from .channels import Aligned, Barrier, Cancel, Element, End, Gate, TaskId
from .coordinator_events import Acknowledged, Confirm, Declined, Event, Exhausted, Finished, GiveUp, ToTask, Trigger
from .mixed_records import cut_by_shape
from .source_and_sink import EXHAUSTED, SourceLogic
from .state.handles import SubtaskState
from .usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..contract.events import SubtaskUsage
    from .channels import Channel, TaskOutput
    from .logic import Frozen, Logic
    from .state.storage import CheckpointStorage

_log = logging.getLogger("onceward.engine")


class TaskWorld(NamedTuple):
    """The surroundings of a task."""

    tell: Callable[[Event], None]
    """Function that passes an event to the coordinator."""
    monotonic: Callable[[], float]
    """Function that returns seconds on a clock that never goes back, for durations."""
    now: Callable[[], float]
    """Function that returns seconds since 1970, for timers."""
    run_later: Callable[[Callable[[], None]], None]
    """Function that runs the asynchronous part of a snapshot."""
    storage: Callable[[Barrier], tuple[CheckpointStorage | None, str]]
    """Function that returns the storage of a checkpoint's files, and the folder in it."""
    most_rows: int = MOST_ROWS
    """Maximum number of rows that a task works on in one piece."""
    linger: float = 0.0
    """Seconds for which a source waits for more rows before it passes on a small batch."""
    most: int | None = None
    """Bytes that a checkpoint may keep of this task inside the decision log; None: any number."""


class Task:
    """The work of one subtask of one operator: it takes from its channels, runs the operator's logic, and passes on."""

    def __init__(
        self, id_: TaskId, logic: Logic, gate: Gate | None, outputs: Sequence[TaskOutput], world: TaskWorld
    ) -> None:
        self.id = id_
        self.logic = logic
        self.gate = gate
        self.outputs = list(outputs)
        self.done = False
        self._world = world
        self._control: deque[ToTask] = deque()
        self._outbox: deque[tuple[Channel, Element]] = deque()
        self._given_up: set[int] = set()
        self._suspended: int | None = None
        """The checkpoint that ends the run, until it is completed or given up."""
        self._exhausted = False
        self._drained = False
        self._ending = False
        self._timers_were_last = False
        self._source = logic if isinstance(logic, SourceLogic) else None
        self.pace = Pace(world.most_rows, world.most_rows if self._source is not None else FIRST_ROWS)
        self._rest: pa.RecordBatch | None = None
        """Rows of a batch that was taken from the gate and is not done: they come before whatever the gate gives."""
        self._held: list[pa.RecordBatch] = []
        """Parts that wait to be joined, until there are enough rows, a barrier comes, or a source has waited long
        enough."""
        self._held_rows = self._held_bytes = 0
        self._held_since = 0.0
        self._usage = Usage(world.monotonic)
        self._at_barrier = self.usage()

    def post(self, message: ToTask) -> None:
        self._control.append(message)

    def usage(self) -> SubtaskUsage:
        """Return the work of the subtask so far. Callable from any thread."""
        return self._usage.total(self.id, lag=self.logic.lag, timers=self.logic.timers_set)

    def step(self) -> bool:
        """Do the next bit of work; False if there is nothing to do now."""
        began = self._usage.begin()
        worked = self._step()
        self._usage.end(began, worked=worked, full=bool(self._outbox))
        return worked

    def _step(self) -> bool:
        # Before the outbox: while outputs are full, it must still hear that a checkpoint is given up.
        if self._control and not self.done:
            self._handle(self._control.popleft())
            return True
        if self._outbox:
            return self._send()
        if self._ending and not self.done:
            self.done = True
            self._world.tell(Finished(self.id))
            return True
        if self.done or self._suspended is not None:
            return False
        return self._work()

    def _work(self) -> bool:
        # After timers it is the input's turn: a barrier does not wait until all timers that are due have been handled.
        if self._timers_were_last:
            self._timers_were_last = False
            if self._read():
                return True
        timed = self.logic.timers(self._world.now(), self._enough())
        if timed is not None:
            self._timers_were_last = True
            self._emit(timed)
            return True
        return self._read()

    def _enough(self) -> Callable[[], bool]:
        """Return a function that says whether it is time to look for other work."""
        monotonic, until = self._world.monotonic, self._world.monotonic() + WORK_SECONDS
        return lambda: monotonic() >= until

    def wake_at(self) -> float | None:
        """Return the processing time of the next work; None if there is none, or while outputs are full."""
        if self._suspended is not None or self._outbox:
            return None
        if self._source is not None and self._held:
            return self._world.now() + max(0.0, self._held_since + self._world.linger - self._world.monotonic())
        return self.logic.next_timer()

    def _read(self) -> bool:
        return self._read_source(self._source) if self._source is not None else self._read_gate()

    def _send(self) -> bool:
        sent = False
        while self._outbox and self._outbox[0][0].offer(self._outbox[0][1]):
            self._outbox.popleft()
            sent = True
        return sent

    def _emit(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            self._usage.rows_out += batch.num_rows
            for output in self.outputs:
                self._outbox += output.parts(batch)

    def _broadcast(self, element: Element) -> None:
        for output in self.outputs:
            self._outbox += [(channel, element) for channel in output.channels]

    def _read_source(self, source: SourceLogic[Any]) -> bool:
        source.most_rows = self.pace.up_to(output.rows for output in self.outputs)
        batch = source.poll() if not self._exhausted else None
        if batch is EXHAUSTED:
            self._flush()
            self._exhausted = True
            self._world.tell(Exhausted(self.id))
            return True
        linger = self._world.linger
        if batch is not None and linger:
            self._hold(batch)
        elif batch is not None:
            self._emit([batch])
        if self._held and self._world.monotonic() >= self._held_since + linger:
            self._flush()
            return True
        return batch is not None

    def _read_gate(self) -> bool:
        if self._rest is not None:
            self._work_on(self._rest)
            return True
        event = self.gate.poll() if self.gate is not None else None
        match event:
            case None:
                return False
            case Aligned():
                self._snapshot(event)
            case Cancel(checkpoint):
                self._broadcast(event)
                self._world.tell(Declined(self.id, checkpoint, "its barrier was cancelled upstream"))
            case End():
                self._flush()
                self._drain()
                self._end()
            case batch:
                self._usage.rows_in += batch.num_rows
                if self.logic.joins:
                    for part in cut_by_shape(batch):
                        self._hold(part)
                else:
                    self._work_on(batch)
        return True

    def _hold(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:  # it may keep alive a large batch that it is a part of
            return
        if self._held and not self._held[0].schema.equals(batch.schema):
            self._flush()
        if not self._held:
            self._held_since = self._world.monotonic()
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        enough = self._source.most_rows if self._source is not None else self.pace.rows
        if self._held_rows >= min(enough, JOINED_ROWS) or self._held_bytes >= PIECE_BYTES:
            self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, []
        self._held_rows = self._held_bytes = 0
        if len(held) > 1:
            with suppress(pa.ArrowException):  # of types that Arrow cannot join
                held = [pa.concat_batches(held)]
        if self._source is not None:
            self._emit(held)
            return
        for batch in held:
            self._rest = batch
            # To the end, because a barrier may be next, and rows before it must not be left.
            while self._rest is not None:
                self._work_on(self._rest)

    def _work_on(self, batch: pa.RecordBatch) -> None:
        """Handle as many rows as can be done soon; the rest has its turn in the next steps."""
        rows, most = batch.num_rows, self.pace.up_to(output.rows for output in self.outputs)
        part = batch if rows <= most else batch.slice(0, even_part(rows, most))
        began = self._world.monotonic()
        done, outputs = self.logic.some_rows(part, self._enough())
        seconds = self._world.monotonic() - began
        self._rest = batch.slice(done) if done < rows else None
        self._emit(outputs)
        self.pace.measured(done, seconds, sum(batch.num_rows for batch in outputs), left_off=done < part.num_rows)
        channels = self.gate.channels if self.gate is not None else ()
        for channel in channels:
            channel.most_rows = -(-self.pace.up_to(output.rows for output in self.outputs) // len(channels))

    def _handle(self, message: ToTask) -> None:
        match message:
            case Trigger(barrier):
                self._snapshot(Aligned(barrier))
            case Confirm(checkpoint):
                self.logic.confirm(checkpoint)
                self._given_up = {c for c in self._given_up if c > checkpoint}
                if self._suspended is not None and self._suspended <= checkpoint:
                    self._suspended = None
                    self._end()
            case GiveUp(checkpoint):
                # Its barrier may still be on the way, and must not be answered with a snapshot.
                self._given_up.add(checkpoint)
                if self.gate is not None:
                    self.gate.give_up(checkpoint)
                if self._suspended == checkpoint:
                    self._suspended = None

    def _snapshot(self, aligned: Aligned) -> None:
        barrier = aligned.barrier
        if barrier.checkpoint in self._given_up:
            # Tasks downstream may have its barrier from others, and would wait for this one.
            self._broadcast(Cancel(barrier.checkpoint))
            return
        # Rows that are held came before the barrier, so they belong to this checkpoint.
        self._flush()
        if barrier.kind.drains:
            self._drain()
        self._emit(self.logic.before_barrier(barrier))
        began = self._world.monotonic()
        try:
            frozen = self.logic.freeze(barrier)
        # Only that: a sink that cannot prepare must fail the run, or its rows would be missing.
        except StateError as error:
            self._broadcast(Cancel(barrier.checkpoint))
            self._world.tell(Declined(self.id, barrier.checkpoint, str(error)))
            return
        self._broadcast(barrier)
        sync = self._world.monotonic() - began
        before, self._at_barrier = self._at_barrier, self.usage()
        done = self._at_barrier.since(before)
        if barrier.kind.terminal:
            self._suspended = barrier.checkpoint
        self._world.run_later(lambda: self._write_out(aligned, frozen, sync, done))

    def _write_out(self, aligned: Aligned, frozen: Frozen, sync: float, done: SubtaskUsage) -> None:
        barrier, began = aligned.barrier, self._world.monotonic()
        try:
            state, written = self._written(barrier, frozen)
        except Exception as error:  # noqa: BLE001 - the state that runs is well, whatever cannot be written of it
            shown = text_of if isinstance(error, (OncewardError, OSError)) else named_text_of
            reason = shown(error)
            _log.info("the state of %s could not be written", self.id, exc_info=error)
            self._world.tell(Declined(self.id, barrier.checkpoint, reason))
            return
        finally:
            # Written or not: a frozen RocksDB is a folder on the disk, which would stay as long as the task runs.
            frozen.discard()
        measured = TaskRecord(
            alignment=aligned.seconds,
            buffered=aligned.buffered,
            sync=sync,
            asynchronous=self._world.monotonic() - began,
            uploaded=written,
            rows_in=done.rows_in,
            rows_out=done.rows_out,
            busy=done.busy,
            blocked=done.blocked,
            timers=done.timers,
            lag=done.lag,
        )
        self._world.tell(
            Acknowledged(
                self.id, barrier.checkpoint, state, frozen.committables, measured, barrier.target, frozen.written
            )
        )

    def _written(self, barrier: Barrier, frozen: Frozen) -> tuple[SubtaskState, int]:
        if barrier.kind.again:  # the decision has its state already
            return SubtaskState(), 0
        storage, folder = self._world.storage(barrier)
        state, written = frozen.write(storage, folder)
        if storage is None and self._world.most is not None and state.size > self._world.most:
            raise StateError(
                f"the state of {self.id} has {state.size} bytes, and the decision log keeps {self._world.most} at "
                "most: use FileBackend or RocksDBBackend, or MemoryBackend(most=…)"
            )
        return state, written

    def _drain(self) -> None:
        # A barrier that drains and the end of the input both come here.
        if not self._drained:
            self._drained = True
            self._emit(self.logic.finish())

    def _end(self) -> None:
        """Send the end downstream, after all that was sent before."""
        self._broadcast(End())
        self._ending = True
