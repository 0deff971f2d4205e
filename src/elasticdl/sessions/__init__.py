"""Training sessions: `runs/NAME/config.yaml` of a repository, trained, exported and evaluated.

project.py        where a session's files are, what its config says, the job it asks for
run.py            the order of things, right from any state
  state.py          how far it is: queued, running, ..., evaluated
  trained.py        the trained model with its components
  export.py         the best model, proved to load and to predict the same elsewhere
  report.py         how it does on each example of the validation and test data
  tracking.py       where people follow it
check.py          what would go wrong, found out within seconds (`checks/`)
submit.py         a session of a pushed commit
  repository.py     what the user's git says
  submission.py     what was asked for, as a value
  queue.py          what waits, as files and locks
  runner.py         the process that goes through the queue
  ray_job.py        the process that stands for a session the cluster runs
orchestrator.py   `run`, for who comes from Python
trainer.py        training on generators that are at hand in a notebook
"""
