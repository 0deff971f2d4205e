"""What `elasticdl session check` looks at, one file a subject; `sessions/check.py` has the order.

finding.py      what was found, as values
names.py        names that modules use and never bind, without running them
settings.py     keys of the config nobody reads; packages that are not installed
signatures.py   methods as they will be called
limits.py       what a look must not do: wait for ever, leave traces
reading.py      the beginning of each split
batches.py      arrays: shapes, ranges, labels, weights
identity.py     ids, and whether the same examples come again
model.py        last layer, loss, labels and metrics, whether they fit
functions.py    the functions that evaluate single examples
"""
