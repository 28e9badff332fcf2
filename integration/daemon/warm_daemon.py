"""Spark's daemon of Python workers, with what they import already there when it forks them: 0.4 s for each, not 1.0 s.

Spark's own imports nothing, because pandas and pyarrow start threads when they are imported, and a fork has none of
them: they are pools that start anew. The first worker of each daemon would import the same.
"""

import pandas as pd  # noqa: F401
import pyarrow.compute  # noqa: F401
from pyspark import worker  # noqa: F401
from pyspark.daemon import manager

import onceward.connectors.spark  # noqa: F401

manager()
