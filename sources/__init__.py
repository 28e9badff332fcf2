"""Sources: resettable, so that an epoch can be read again exactly as it was.

The ready sources need extras (`onceward[kafka]`), so they are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigurationError
from .base import LiveSource, Piece, Position, ResettableSource, Source, Split
from .files import FileSource
from .sequence import SequenceSource

if TYPE_CHECKING:
    from .kafka import KafkaSource

__all__ = [
    "FileSource",
    "KafkaSource",
    "LiveSource",
    "Piece",
    "Position",
    "ResettableSource",
    "SequenceSource",
    "Source",
    "Split",
]

_READY = {"KafkaSource": "kafka"}


def __getattr__(name: str) -> Any:
    if name not in _READY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _READY[name]
    try:
        return getattr(import_module(f".{module}", __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("onceward"):
            raise
        raise ConfigurationError(f"{name} needs {error.name}: pip install 'onceward[{module}]'") from error
