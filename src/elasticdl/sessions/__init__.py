"""Training sessions: a repository's `runs/NAME/config.yaml`, trained, exported and evaluated.

project.py        where a session's files are, the content of its config, its training job
run.py            the sequence of phases, correct from any state
  state.py          progress of a session: queued, running, ..., evaluated
  trained.py        the trained model with its components
  export.py         the best model, verified to load and to predict the same in a new process
  report.py         results for each example of the validation and test data
  tracking.py       trackers (MLflow, TensorBoard) of a session
check.py          finds what would go wrong, within seconds (`checks/`)
submit.py         a session of a pushed commit
  repository.py     the state of the user's git repository
  submission.py     a submitted session, as a value
  queue.py          waiting submissions, as files and locks
  runner.py         the process that works through the queue
  ray_job.py        the process that represents a session run by the cluster
orchestrator.py   the class `Orchestrator`, to run a session from Python
trainer.py        training on generators in a notebook
"""
