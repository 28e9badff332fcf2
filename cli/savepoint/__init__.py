"""`onceward savepoint`: copies of a Spark query's checkpoint and decision log, and what may be restored of them."""
