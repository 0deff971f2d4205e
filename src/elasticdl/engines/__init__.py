"""Where a definition is trained: `in_process` here, later `elastic` and `federated`."""
