"""The crash matrix: deaths at each durable step, by kind of death, combination of sinks and driving style."""
