"""Reading and writing by `format(...)`: the data sources that Spark runs in processes of its own."""
