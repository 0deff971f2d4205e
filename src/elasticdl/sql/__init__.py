"""Training and prediction from SQL: statements, databases, models by name."""
