"""Messages between aggregator and parties, and their encoding on a stream."""
