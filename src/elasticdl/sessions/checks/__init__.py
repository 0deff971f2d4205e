"""Rules of `elasticdl session check`, one file per subject; `sessions/check.py` has the order.

finding.py        findings, as values
check_context.py  results of earlier groups
sources.py        groups for the config, the code and the repository
splits.py         groups for the data of each split
steps.py          groups that use the model
names.py          names and imports that modules lack, without running them
keys.py           config keys that are never read
signatures.py     methods and the arguments of their calls
limits.py         prevents a check from hanging, leaving files behind, or printing
reading.py        reads the beginning of each split
batches.py        arrays and sizes of a split
model.py          whether last layer, loss, labels and metrics fit
"""
