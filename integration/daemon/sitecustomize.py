"""Spark's daemons of Python workers import what these need before they fork them: 0.4 s for each worker, not 1.0 s.

Spark's own import nothing, because pandas and pyarrow start threads when they are imported, and a fork has none of
them: they are pools that start anew. Each kind of worker has its own daemon, in each JVM.
"""

import sys

if "pyspark.daemon" in sys.orig_argv:
    from importlib import import_module

    for name in ("pandas", "pyarrow.compute", "onceward.connectors.spark", sys.orig_argv[-1]):
        import_module(name)
