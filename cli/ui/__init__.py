"""`onceward ui`: a local web page that shows pipelines, and ends transactions in doubt as `onceward txn` does."""
