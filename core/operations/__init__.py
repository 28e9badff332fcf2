"""What operators do with pipelines: findings, and comparisons of rows."""
