"""Savepoints of Spark queries: copies of a checkpoint and its decision log, and how they are restored."""
