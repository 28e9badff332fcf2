"""Spark's daemons of Python workers import what these need before they fork them, so that a worker starts at once.

Spark's own import nothing, because pandas and pyarrow start threads when they are imported, and a fork has none of
them: they are pools that start anew. Each kind of worker has its own daemon, in each JVM.
"""

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith(".zip")]  # Spark's copy of itself has no bytecode
if "pyspark.daemon" in sys.orig_argv:
    import gc
    from importlib import import_module

    sinks = ("onceward.connectors.database.sink", "onceward.connectors.kafka.sink", "onceward.connectors.spark")
    for name in ("pandas", "pgpq", "psycopg", "pyarrow.compute", "pyarrow.dataset", *sinks, sys.orig_argv[-1]):
        import_module(name)
    gc.freeze()  # a worker looks through all objects for garbage after each task
