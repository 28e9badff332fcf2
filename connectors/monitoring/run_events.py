"""An OpenLineage event for each completed epoch: inputs with offsets, outputs with rows.

An epoch is a run of the job that is called as the pipeline. Its run id is made of the decision log's identity and the
epoch's number, so the same epoch is the same run wherever it is finished.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from openlineage.client import event_v2
from openlineage.client.facet_v2 import base_subset_dataset as subset
from openlineage.client.facet_v2 import job_type_job, nominal_time_run
from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

from onceward.core.contract.events import EpochCompleted, Event, Took, wall_clock

if TYPE_CHECKING:
    from collections.abc import Iterator

PRODUCER: Final = "https://pypi.org/project/onceward"
_RUNS: Final = uuid.UUID("6f6e6365-7761-5264-8000-6c696e656167")


class RunEvents:
    """Observer that emits a run event for each epoch with rows."""

    def __init__(self, client: Any, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpochCompleted) and (event.written or event.committables):
            self._client.emit(self._run_event(event))

    def _run_event(self, event: EpochCompleted) -> Any:
        job_type = job_type_job.JobTypeJobFacet("STREAMING", "ONCEWARD", "EPOCH", producer=PRODUCER)
        return event_v2.RunEvent(
            eventType=event_v2.RunState.COMPLETE,
            eventTime=datetime.fromtimestamp(wall_clock(), UTC).isoformat(),
            run=event_v2.Run(runId=str(uuid.uuid5(_RUNS, f"{event.log} {event.epoch}")), facets=_times(event.took)),
            job=event_v2.Job(namespace=self._namespace, name=event.pipeline, facets={"jobType": job_type}),
            inputs=list(self._inputs(event)),
            outputs=list(self._outputs(event)),
            producer=PRODUCER,
        )

    def _inputs(self, event: EpochCompleted) -> Iterator[Any]:
        starts, ends = _by_source(event.input.start), _by_source(event.input.end)
        for source, end in ends.items():
            for name, (first, last) in _ranges(f"{event.pipeline}.{source}", starts.get(source), end).items():
                yield event_v2.InputDataset(
                    namespace=self._namespace, name=name, inputFacets={"subset": _offsets(first, last)}
                )

    def _outputs(self, event: EpochCompleted) -> Iterator[Any]:
        for sink, rows in event.rows().items():
            known = event.sinks[sink].dataset() if sink in event.sinks else None
            namespace, name = known or (self._namespace, f"{event.pipeline}.{sink}")
            counted = statistics.OutputStatisticsOutputDatasetFacet(rowCount=rows, producer=PRODUCER)
            yield event_v2.OutputDataset(namespace=namespace, name=name, outputFacets={"outputStatistics": counted})


def _times(took: Took | None) -> dict[str, Any]:
    """Return when the epoch began and ended, as a facet."""
    if took is None:
        return {}
    began, ended = (datetime.fromtimestamp(wall_clock(ago), UTC).isoformat() for ago in (took.epoch, 0.0))
    return {"nominalTime": nominal_time_run.NominalTimeRunFacet(began, ended, producer=PRODUCER)}


def _by_source(offsets: Any) -> dict[str, Any]:
    """Return an epoch's offsets by source: by uid (the embedded engine), or by number (Spark, a JSON text each)."""
    if isinstance(offsets, Mapping):
        return dict(offsets)
    return {f"source-{number}": _read(text) for number, text in enumerate(offsets or ())}


def _read(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _ranges(source: str, start: Any, end: Any) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return first and next offsets by partition, of each topic; any other source is one partition under its name."""
    if not _is_topics(end):
        return {source: ({"": start}, {"": end})}
    before = start if _is_topics(start) else {}
    return {topic: (before.get(topic, {}), numbers) for topic, numbers in end.items()}


def _is_topics(offsets: Any) -> bool:
    """Return whether the offsets are `{"topic": {"0": 123}}`."""
    return (
        isinstance(offsets, Mapping)
        and bool(offsets)
        and all(isinstance(n, Mapping) and all(str(key).isdigit() for key in n) for n in offsets.values())
    )


def _offsets(first: Mapping[str, Any], after: Mapping[str, Any]) -> Any:
    """Return the standard facet for a part of a dataset: each partition's first offset, and the one after its last."""
    partitions = [
        subset.Partition(
            dimensions={"partition": number, "startOffset": first.get(number), "endOffset": end},
            identifier=number or None,
        )
        for number, end in after.items()
    ]
    condition = subset.PartitionSubsetCondition(partitions)
    return subset.InputSubsetInputDatasetFacet(condition, producer=PRODUCER)
