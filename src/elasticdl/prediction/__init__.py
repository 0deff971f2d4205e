"""The prediction phase of a run: read, predict, pass each batch to a writer."""
