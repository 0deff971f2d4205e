"""Training sessions: `runs/NAME/config.yaml` of a repository, trained, exported and evaluated.

project.py   where a session's files are, what its config says, the job it asks for
state.py     how far it is: queued, running, ..., evaluated
run.py       the order of things
export.py    the best model, proved to load and to predict the same elsewhere
report.py    how it does on each example of the validation and test data
check.py     what would go wrong, found out within seconds
submit.py    a session of a pushed commit
"""
