"""Shelves: lists of rows, as JSON, in one SQLite file. Somebody else's system, with its own sink and connector."""

from .sink import ShelfSink

__all__ = ["ShelfSink"]
