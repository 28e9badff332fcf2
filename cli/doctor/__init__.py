"""`onceward doctor`: is everything set up for the guarantee, and if not, what to do."""

from .checks import run_checks
from .finding import Finding, Health

__all__ = ["Finding", "Health", "run_checks"]
