"""What a sink's methods returned, checked where it is used: a mistake in a sink is told with its class and method.

An outcome that is not one, or a handle that another process reads differently, would otherwise fail later and
elsewhere, or only after a crash.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import LifecycleError
from .ledger import Ledger
from .transaction import Committable

if TYPE_CHECKING:
    from .sink import Sink, TwoPhaseCommitSink

T = TypeVar("T")


def one(sink: TwoPhaseCommitSink[Any], method: str, answer: object, kind: type[T], *, epoch: int | None = None) -> T:
    """Return the answer if it is of this type; raise LifecycleError if not."""
    if isinstance(answer, kind):
        return answer
    due = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
    raise _wrong(sink, method, f"{_shown(answer)} instead of {due}", epoch)


def many(
    sink: TwoPhaseCommitSink[Any], method: str, answer: object, kind: type[T], *, epoch: int | None = None
) -> list[T]:
    """Return the answers if all are of this type; raise LifecycleError if not."""
    if not isinstance(answer, Iterable) or isinstance(answer, str):
        raise _wrong(sink, method, f"{_shown(answer)}, not a sequence of {kind.__name__}", epoch)
    return [one(sink, method, value, kind, epoch=epoch) for value in answer]


def of_each(
    sink: TwoPhaseCommitSink[Any], method: str, committables: Sequence[Committable], answer: object, kind: type[T]
) -> list[tuple[Committable, T]]:
    """Return the committables, each with its answer; raise LifecycleError unless each has one of this type."""
    epoch = committables[0].epoch
    answers = many(sink, method, answer, kind, epoch=epoch)
    if len(answers) != len(committables):
        raise _wrong(
            sink, method, f"{len(answers)} values for {len(committables)} committables; give one for each", epoch
        )
    return list(zip(committables, answers, strict=True))


def call_to_end(sink: Sink, method: str, *arguments: object) -> None:
    """Call a method that returns when its work is done; raise LifecycleError if it is not done then."""
    answer = getattr(sink, method)(*arguments)
    if isinstance(answer, Awaitable):
        if isinstance(answer, Coroutine):
            answer.close()  # or Python complains, too
        raise _wrong(
            sink, method, f"a {type(answer).__name__}, for which nobody waits; return when the work is done", None
        )


def ledger(sink: TwoPhaseCommitSink[Any]) -> Ledger:
    """Return the sink's ledger; raise LifecycleError if its method returned something else."""
    return one(sink, "ledger", sink.ledger(), Ledger)


def checked_answer(sink: TwoPhaseCommitSink[Any], answer: object, epoch: int) -> Committable:
    """Return the answer of `pre_commit`; raise LifecycleError if it cannot be stored in the decision log."""
    if not isinstance(answer, Committable):
        what = f"{_shown(answer)}, not a Committable; end it with `return context.committable(…)`"
        raise _wrong(sink, "pre_commit", what, epoch)
    for path, value in _not_json(answer.handle, "handle"):
        what = (
            f"a committable whose {path} is {_shown(value)}, which JSON cannot hold: the handle is stored in "
            "the decision log, and another process reads it. Keep the rows in the target, and only what finds them in "
            "the handle"
        )
        raise _wrong(sink, "pre_commit", what, epoch)
    return answer


def _not_json(value: object, path: str) -> Iterable[tuple[str, object]]:
    match value:
        case None | bool() | int() | float() | str():
            return
        case dict():
            for key, inner in value.items():
                yield from _not_json(inner, f"{path}[{key!r}]") if isinstance(key, str) else [(f"key in {path}", key)]
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            for number, inner in enumerate(value):
                yield from _not_json(inner, f"{path}[{number}]")
        case _:
            yield path, value


def _shown(value: object) -> str:
    if value is None:
        return "None"
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"a value of type {module}{kind.__qualname__}"


def _wrong(sink: Sink, method: str, what: str, epoch: int | None) -> LifecycleError:
    return LifecycleError(f"{method} of {type(sink).__qualname__} returned {what}", sink=sink.name, epoch=epoch)
