"""onceward: exactly-once sinks and sources for PySpark, by two-phase commit."""

__version__ = "0.1.0"
__all__ = ["__version__"]
