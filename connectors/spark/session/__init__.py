"""What is asked of a Spark session, classic or Spark Connect: its queries, plans, files and options."""
