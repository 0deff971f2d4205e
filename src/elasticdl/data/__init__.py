"""Reading of records: formats, schemas, batches. Knows nothing of models."""
