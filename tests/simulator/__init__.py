"""A seeded simulator of the commit protocol: real coordinator and log code over a nasty world.

Read docs/simulator.md. In short: `world` schedules processes as greenlets and disturbs them; `store`, `broker` and
`database` are the outside world; `pipeline` drives epochs as Spark does; `audit` checks the invariants at each step.
"""

from .plan import Config, Plan, make
from .run import Outcome, simulate

__all__ = ["Config", "Outcome", "Plan", "make", "simulate"]
