"""The prediction phase of a run: reads records, predicts, and passes each batch to a writer."""
