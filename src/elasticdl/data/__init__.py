"""Records and how they are read: formats, schemas, batches. Knows nothing of models."""
