"""The aggregator: it runs the rounds and tracks which parties take part in them."""
