"""What operators do with pipelines: decision logs and targets, findings, and comparisons of rows."""
