"""Evaluates models: metrics summed over batches and workers, and reports on each example."""
