"""Writing by foreachBatch: `exactly_once` and `ForeachBatch`, from the micro-batch to its tasks."""
