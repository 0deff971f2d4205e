"""Metrics that merge across batches and workers, and the phase of a run that computes them."""
