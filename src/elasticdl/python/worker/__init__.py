"""Lets model files keep imports of an earlier ElasticDL; ElasticDL itself does not use it."""
