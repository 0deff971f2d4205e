"""The gRPC server of `elasticdl sql-server` and what it says on the wire."""
