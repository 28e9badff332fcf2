"""One life of a pipeline, from its first START to its end: what each way to run one has to do alike.

A driver (the function of foreachBatch, a format's writers, the embedded engine) reads and computes. It leaves the rest
to its PipelineRun: the writers it becomes, the coordinator, who may note what, the hand-over to a newer driver, and
to a Keeper what is due between epochs.

The package imports nothing: a process that only reads imports the watch of sources alone.
"""
