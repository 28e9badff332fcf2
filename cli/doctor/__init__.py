"""`onceward doctor`: is everything set up for the guarantee, and if not, what to do."""

from .examine import examine
from .finding import Finding, Health

__all__ = ["Finding", "Health", "examine"]
