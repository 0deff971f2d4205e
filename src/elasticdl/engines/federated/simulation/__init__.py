"""Simulation: all parties of a federation on one machine, and data sets partitioned for them."""
