"""The gRPC server of `elasticdl sql-server` and its wire format."""
