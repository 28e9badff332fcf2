"""One life of a pipeline, which every way to run one drives."""
