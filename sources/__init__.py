"""Sources: resettable, so that an epoch can be read again exactly as it was. The ready ones are in `onceward`."""

from onceward.core.source import LiveSource, Piece, Position, ResettableSource, Source, Split

from .sequence import SequenceSource

__all__ = [
    "LiveSource",
    "Piece",
    "Position",
    "ResettableSource",
    "SequenceSource",
    "Source",
    "Split",
]
