"""What a scheduler runs for a pipeline each night: end what a dead run left in doubt, and audit yesterday's epochs.

In Airflow, each function is a `@task`, and `day` is the run's `ds`. Here, for a pipeline that writes to PostgreSQL:
python examples/nightly_check.py checkpoints/orders table postgres:orders "host=db dbname=shop" 2026-11-27
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from onceward import operations

PATIENCE = timedelta(minutes=15)
"""A run that is alive commits what it has decided long before."""


def commit_in_doubt(store: str, place: str, address: str, patience: timedelta = PATIENCE) -> str:
    """Commit the decision that a dead run left behind. A run that is alive would be fenced, so it gets time."""
    log = operations.open_log(store, writing=True)
    decision = log.view.undone
    if decision is None:
        return "nothing is in doubt"
    if datetime.now(UTC) - datetime.fromisoformat(decision.at) < patience:
        return f"epoch {decision.epoch} was decided a moment ago"
    target = operations.open_target(place.partition(":")[0], address)
    found = operations.survey([log], [target])
    plan = operations.plan_commit(log, decision, found.transactions)
    if plan is None:
        return f"another process has finished epoch {decision.epoch}"
    if plan.lost:
        raise RuntimeError(f"epoch {plan.epoch} has lost {[one.name for one in plan.lost]}: somebody must look at it")
    done = operations.commit_decided(log, decision, found.transactions)
    return f"committed {done.committed} transactions of epoch {done.epoch}" if done else "another process was quicker"


def audit_epochs(store: str, sink: str, place: str, address: str, day: str) -> str:
    """Prove that the target still holds what the epochs of a day (UTC) wrote."""
    log = operations.open_log(store)
    epochs = operations.epochs_of_day(log, sink, day)
    if epochs is None:
        return f"no epoch of {day} wrote rows"
    told = operations.audit(log, sink, operations.open_place(place, address), epochs=epochs)
    if told.verdict is operations.EpochVerdict.DIFFERS:
        wrong = [line.epoch if line.epoch is not None else "older ones" for line in told.lines if line.differs]
        raise RuntimeError(f"{told.target}: differs: epochs {wrong}; rows that no epoch wrote: {told.foreign}")
    if told.verdict is operations.EpochVerdict.UNPROVEN:  # an alert for the morning, not for the night
        return f"{told.target}: epochs {epochs[0]} to {epochs[-1]} cannot be proven"
    rows = sum(line.found for line in told.lines)
    return f"{told.target}: epochs {epochs[0]} to {epochs[-1]} are proven, {rows} rows"


def main(store: str, sink: str, place: str, address: str, day: str | None = None) -> None:
    """Run both tasks, one after the other."""
    print(commit_in_doubt(store, place, address))
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    print(audit_epochs(store, sink, place, address, day or yesterday))


if __name__ == "__main__":
    main(*sys.argv[1:])
