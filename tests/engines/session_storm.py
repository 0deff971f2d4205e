"""Trains a session in processes of its own, each forked after the frameworks were imported.

    session_storm.py PROJECT FLAVOUR:OUTPUT[=STEP,STEP,...] ...

For each output, a process kills itself, by SIGKILL, in the callback after each STEP; the last one
comes to the end.

Callers: `test_session_training.py`.
"""

import os
import signal
import sys
import traceback

import keras  # noqa: F401 - importing it is what takes the time
import tensorflow as tf  # noqa: F401 - as above

from elasticdl import api
from elasticdl.engines.progress_bar import Silent
from elasticdl.job import Job, ModelReference, TrainingOptions
from elasticdl.training import keras as trainer  # noqa: F401 - as above

NUM_EPOCHS = 3


def job_of(project, flavour, output):
    params = {"flavour": flavour, "data_dir": project, "epochs": NUM_EPOCHS}
    classes = {"data_loader_class": "session.Loader", "preprocessor_class": "session.Preprocessor"}
    return Job(
        command="train",
        data=project,
        output=output,
        model=ModelReference(
            project, "session.Builder", "abstractions", params=params, overrides=classes
        ),
        validation_data=project,
        training=TrainingOptions(
            num_epochs=NUM_EPOCHS, minibatch_size=4, seed=7, checkpoint_steps=4
        ),
    )


def run_in_a_fork(job, last_step):
    """Return the exit code of a process that runs a job, and dies after a step."""
    pid = os.fork()
    if pid == 0:
        os.environ["KILL_AFTER_STEP"] = last_step
        code = 1
        try:
            api.run(job, Silent())
            code = 0
        except BaseException:  # noqa: BLE001 - a child must not go on as its parent
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(project, *runs):
    for run in runs:
        flavour, _, where = run.partition(":")
        output, _, steps = where.partition("=")
        for step in [*filter(None, steps.split(",")), ""]:
            code = run_in_a_fork(job_of(project, flavour, output), step)
            if code != (-signal.SIGKILL if step else 0):
                sys.exit(f"{run}, step {step!r}: exit code {code}")


if __name__ == "__main__":
    main(*sys.argv[1:])
