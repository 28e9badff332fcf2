"""Files in folders: the sink, the source, formats and partitions."""
