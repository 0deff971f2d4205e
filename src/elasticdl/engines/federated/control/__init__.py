"""User commands, such as `status` or `stop`, to an aggregator or party running on this machine."""
