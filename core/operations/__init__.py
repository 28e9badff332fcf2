"""What operators do with pipelines: findings about what a pipeline stands on."""
