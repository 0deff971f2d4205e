"""Assignment of records to workers, exactly once: pure values, no data, clock or framework."""
