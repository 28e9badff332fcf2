"""Reading: the sources that onceward offers to Spark, and what it knows of those that a query reads."""
