"""Time to live: how long a keyed state keeps a value after it was written.

As in Flink ("State Time-To-Live (TTL)"): in processing time, a write renews a value and a read does not, and a value
that has expired is never given. A cell of such a state begins with the time at which it was written; in a list, each
item has its own. So times are in every snapshot, whatever the backend and the parallelism.

Nothing waits for a value to expire. Expired cells are removed when they are read, and a few at a time by a sweep: it
looks at twice as many cells as were created since the last sweep, so garbage is at most a share of the state.
"""

from __future__ import annotations

import struct
from typing import Final

from ...errors import ConfigurationError

TIME: Final = struct.Struct(">d")
WITH_TIMES: Final = " with times"
"""Suffix of a layout's name if its cells have times."""
LEAST: Final = 0.001
"""Seconds: clocks are not finer, so a shorter time might have passed at once."""
MOST: Final = 1e12
CREATED_PER_SWEEP: Final = 2_000
AT_LEAST_PER_SNAPSHOT: Final = 1_000
"""Cells that the sweep before a snapshot looks at, even if none was created, because old ones expire all the same."""


def checked_ttl(kind: str, ttl: float | None) -> float | None:
    """Return a time to live in seconds; a ConfigurationError unless it is a number within the limits."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not LEAST <= ttl <= MOST:
        raise ConfigurationError(
            f"{kind}(ttl={ttl!r}): give a number of seconds from {LEAST} to {MOST:.0e}, or leave it out to keep all"
        )
    return float(ttl)


def has_times(layout: str) -> bool:
    """Return whether the cells of a layout have times."""
    return layout.endswith(WITH_TIMES)


def without_times(layout: str) -> str:
    """Return the name of a layout, be there times in its cells or not: a restore adds and removes them."""
    return layout.removesuffix(WITH_TIMES)
