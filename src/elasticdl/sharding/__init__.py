"""Divides the records of an epoch into shards, and assigns each batch to exactly one worker.

`epoch_order.py` computes which records a shard has, `ledger.py` records which worker trains on
which batches, and `audit.py` checks afterwards that no batch was repeated or skipped. This folder
only computes values: it reads no file, and uses no clock, network or framework.
"""
