"""A phase of a run: read, predict, hand each batch to a writer."""
