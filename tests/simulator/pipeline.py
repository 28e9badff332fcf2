"""Runs of a streaming query: Spark's micro-batch loop around the real drivers of the protocol.

Style "batch" is `exactly_once`: the real EpochHandler decides and commits in the driver, one START per run. Style
"format" is a Python data source: the real StreamWriter is made and pickled in one Python process, writes on executors,
and another one that knows only the messages commits; a third one aborts when the second failed.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from onceward.connectors.spark.write.handler import EpochHandler
from onceward.core.checkpoint import Backoff, CommitPolicy, OnLost
from onceward.core.contract.pipeline_settings import FOREACH_BATCH
from onceward.core.errors import OncewardError

from .audit import kind_of
from .plan import Kind
from .spark import SCHEMA, Cluster, Frame, QueryStoppedError, Session, SimulatedFormat, Stage, dumps, loads
from .world import Process, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onceward.connectors.spark.formats.writers import StreamWriter
    from onceward.core.checkpoint import Coordinator
    from onceward.core.log import EpochInput

    from .audit import Audit
    from .plan import Config
    from .spark import Batch, Folder
    from .world import World

PAUSE = 10
"""Ticks between two rounds of commits."""
SWEEP_EVERY = 2000.0
"""Ticks after which a coordinator sweeps without a reason."""


def policy_of(world: World) -> Callable[..., CommitPolicy]:
    """CommitPolicy with the world's clock and randomness."""

    def backoff(attempts: int, ticks: int) -> Backoff:
        return Backoff(attempts=attempts, sleep=lambda _: world.nap(ticks), fraction=lambda: 0.0)

    return partial(
        CommitPolicy,
        commit_timeout=math.inf,
        commits=backoff(6, PAUSE),
        make_all=world.side_by_side,
        puts=backoff(world.plan.config.tries, 1),
        sweep_every=SWEEP_EVERY,
        monotonic=world.clock,
        token=world.token,
        now=lambda: str(world.clock()),
    )


class Driver:
    """One run of the query.

    Args:
        folder: Its checkpoint.
        names: What its sinks are called.
        make: Makes sinks of these names, new ones for each process.
        rewind: What the command line says.
        number: Counts runs; other numbers see other amounts of data.
        app: Drivers of one application share executors.
    """

    def __init__(
        self,
        world: World,
        audit: Audit,
        folder: Folder,
        names: Sequence[str],
        make: Callable[[Sequence[str]], list[Any]],
        *,
        rewind: str | None = None,
        number: int = 0,
        cluster: Cluster,
        handler_class: type[EpochHandler] = EpochHandler,
    ) -> None:
        self.world = world
        self.audit = audit
        self.config: Config = world.plan.config
        self.folder = folder
        self.store = folder.store
        self.names = names
        self.kinds = tuple(kind_of(name) for name in names)
        self.sinks = lambda: make(names)
        self.rewind = rewind
        self.number = number
        self.cluster = cluster
        self.app = 0 if self.config.same_app else number
        self.coordinators: list[Coordinator] = []
        self.process = Process(world, f"driver {number}", self)
        self.session = Session(self)
        self.finished = False
        self.supervised = False
        """Whether somebody starts it again."""
        self.collected: tuple[int, int, int] = (0, -1, -1)
        """When the newest stage ended, how much was disturbed until then, and under which START."""
        self.acknowledged = 0
        """When it had looked at an epoch's acknowledgements last."""
        self._handler_class = handler_class
        self._handler: EpochHandler | None = None
        self._completed: set[int] = set()

    def go_on_in(self, before: Driver) -> None:
        """The same function of foreachBatch runs a new query, in the process of the one that failed."""
        self.process = before.process
        self.process.driver = self
        self.session = before.session
        self.session.run_by(self)
        self._handler = before._handler
        if self._handler is not None:
            self._handler.on_complete = self._on_complete

    def run(self) -> None:
        """Run batches until the input is used up."""
        try:
            self._run()
        finally:
            self.world.excuses += not self.supervised

    def _run(self) -> None:
        while True:
            batch = self.folder.next_batch()
            self.world.point("next batch")
            if not self._plan(batch):
                self.finished = True
                return
            run = self._for_each_batch if self.config.style == "batch" else self._format
            try:
                run(batch)
            except QueryStoppedError:
                self._check_leftovers(batch, failed=True)
                raise
            self._check_leftovers(batch, failed=False)
            self.world.point("commit log")
            self.audit.on_logged(self, batch)
            self.folder.commits.append(batch)
            self.store.back_up(self.folder)

    def _plan(self, batch: int) -> bool:
        """Choose the batch's input and record it, as Spark does before it runs the batch."""
        if batch in self.folder.offsets:
            return True
        start = self.folder.end_of(batch - 1)
        if start >= self.config.records:
            return False
        steps = self.config.steps
        end = min(self.config.records, start + steps[(batch + self.number) % len(steps)])
        self.world.point("offsets log")
        if batch in self.folder.offsets:
            raise QueryStoppedError("another query wrote this batch's offsets")
        self.folder.write_offsets(batch, end, self.world.tick)
        return True

    # foreachBatch

    def _for_each_batch(self, batch: int) -> None:
        session: Any = self.session
        if self._handler is None:
            self._handler = self._handler_class(
                spark=session,
                sinks=self.sinks(),
                settings=FOREACH_BATCH.filled(
                    {"pipeline": self.audit.pipeline, "adopt": self.config.adopt, "rewind": self.rewind}
                ),
                policy=policy_of(self.world)(on_lost=OnLost(self.config.on_lost)),
                cheap=False,
                row_size=None,
                on_complete=self._on_complete,
            )
        frame: Any = Frame(self, batch)
        self._handler(frame, batch)
        if not frame.ran:
            raise Violation("replay", f"batch {batch} was not run: a stateful query would miss a version of its state")
        if batch not in self._completed:
            raise Violation("7", f"nobody was told that epoch {batch} is completed")

    def _on_complete(self, epoch: int, _about: EpochInput) -> None:
        if epoch not in self.store.audit.done:
            raise Violation("7", f"epoch {epoch} was said to be completed, and is not")
        self._completed.add(epoch)

    # the Python data source

    def _format(self, batch: int) -> None:
        pickled: bytes = self._in_python("first", lambda: (dumps(writer := self._writer()), dumps(writer))[1])
        stage = Stage(self, batch, partial(self._write, pickled), self.config.subtasks)
        try:
            messages = stage.run()
        except (OncewardError, QueryStoppedError):
            self._in_python("third", lambda: self._writer().abort(self._received(stage.messages), batch))
            raise
        try:
            self._in_python("second", lambda: self._writer().commit(self._received(messages), batch))
        except (OncewardError, QueryStoppedError):
            self._in_python("third", lambda: self._writer().abort(self._received(messages), batch))
            raise

    def _writer(self) -> StreamWriter:
        """What the format's streamWriter gives, in each process anew."""
        options = {
            "pipeline": self.audit.pipeline,
            "checkpointlocation": self.folder.root,
            "onlost": self.config.on_lost,
        }
        if self.rewind is not None:
            options["rewind"] = self.rewind
        if self.config.adopt:
            options["adopt"] = "true"
        return SimulatedFormat(options, self.sinks()[0]).streamWriter(SCHEMA, overwrite=False)

    def _write(self, pickled: bytes, batches: Iterator[Batch]) -> bytes:
        writer: Any = loads(self.world, pickled)
        return dumps(writer.write(batches))

    def _received(self, messages: list[bytes | None]) -> list[Any]:
        return [None if message is None else loads(self.world, message) for message in messages]

    def _in_python(self, name: str, body: Callable[[], Any]) -> Any:
        """Run something in a Python process of its own, beside the JVM, and wait for it."""
        process = Process(self.world, f"{self.process.name} {name}", self)
        task = self.world.start(process, name, body, role="python")
        self.world.wait(lambda: task.done or not process.alive)
        if task.error is not None or not task.done:
            raise task.error if isinstance(task.error, Exception) else QueryStoppedError("a Python process died")
        return task.result

    def _check_leftovers(self, batch: int, *, failed: bool) -> None:
        """What attempts that do not count had prepared when the stage ended is gone, unless somebody was in the way."""
        when, disturbed, start = self.collected
        if disturbed != self.world.disturbed or self.world.troubled_until >= when or not self.coordinators:
            return
        if any(event.kind is Kind.FAIL_OVER for event in self.world.plan.events):
            return  # what has lost something is not swept
        if failed and self.config.style == "format":
            return  # Spark tells its abort() of answers that counted; the next START looks for the rest
        log, token = self.store.audit, self.coordinators[-1].writer.token
        if (log.log, log.start, log.writer) != (token.log, token.start, token.writer_id):
            return
        mine = (log.log, start, batch, "prepared", False)
        left = [t for t in self.audit.prepared.values() if (t.log, t.writer, t.epoch, t.state, t.ending) == mine]
        left = [t for t in left if t.decision is None and t.since < when]
        if left:
            raise Violation("sweep", f"left behind by attempts that do not count: {left}")
