"""Who trains on which records, exactly once: pure values, no data, no clock, no framework."""
