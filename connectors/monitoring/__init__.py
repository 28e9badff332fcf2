"""Metrics and lineage of a process's pipelines, made of the events that core tells."""

from . import lineage, metrics

__all__ = ["lineage", "metrics"]
