"""Where reading starts or ends, resolved to offsets by asking the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.errors import SourceError

from .bounds import LATEST, AtTime, Bound, spread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .lookup import Lookup
    from .positions import Offsets, Partition


def start_offsets(given: Bound, partitions: Iterable[Partition], lookup: Lookup) -> Offsets:
    """Offsets where reading starts.

    Raises:
        ConfigurationError: Offsets are given, and not for exactly these partitions.
        SourceError: A time is given that is later than all records of a partition.
    """
    numbers = spread(given, partitions, "startingOffsets")
    if not isinstance(given, AtTime):
        return lookup.offsets(numbers)[0]
    found = lookup.at_times(numbers)
    late = [str(partition) for partition, offset in sorted(found.items()) if offset < 0]
    if late and not given.or_latest:
        raise SourceError(
            f"no record of {', '.join(late)} is as new as the starting time: with "
            "startingOffsetsByTimestampStrategy=latest (AtTime(or_latest=True)) reading begins at the end"
        )
    return _ends_where_late(found, lookup)


def end_offsets(given: Bound, partitions: Iterable[Partition], lookup: Lookup) -> Offsets:
    """Offsets where reading ends; a time that is later than all records is the end.

    Raises:
        ConfigurationError: Offsets are given, and not for exactly these partitions.
    """
    numbers = spread(given, partitions, "endingOffsets")
    if not isinstance(given, AtTime):
        return lookup.offsets(numbers)[0]
    return _ends_where_late(lookup.at_times(numbers), lookup)


def _ends_where_late(found: Offsets, lookup: Lookup) -> Offsets:
    return lookup.offsets({partition: LATEST if offset < 0 else offset for partition, offset in found.items()})[0]
