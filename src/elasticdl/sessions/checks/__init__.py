"""Rules of `elasticdl session check`, one file per subject; `sessions/check.py` has the order.

finding.py        the class of a finding: a problem, or information
check_context.py  results of the groups of checks that ran before
sources.py        groups for the config, the code and the repository
splits.py         groups for the data of each split
steps.py          groups that use the model
names.py          missing names and imports, found without running the modules
keys.py           config keys that are never read
signatures.py     methods that are missing or do not accept their arguments
limits.py         prevents a check from hanging, leaving files behind, or printing
reading.py        reads the beginning of each split
batches.py        arrays and sizes of a split
model.py          whether last layer, loss, labels and metrics fit together
"""
