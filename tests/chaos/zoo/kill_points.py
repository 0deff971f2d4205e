"""Deaths at named points of a worker: user code that reaches into the engine it runs in.

A model file imports it, so it is in every worker; the product knows nothing of it. The storm puts
a file named after a point into a folder. Who comes to that point first takes the file away and
dies there, by SIGKILL: one file, one death.

    tracing      on its first trace, before it ever trained
    asking       before it asks who takes part in the next step
    late         the others are inside of the all-reduce, and it does not come
    adding       inside of the all-reduce: its numbers are handed in
    summed       between all-reduce and commit
    voted        between commit and apply
    applied      between apply and the ledger
    serving      as the source of a heal, half of the state is sent
    fetching     as its destination, before anything has arrived
    healed       ... and with the state taken over, before its first step
    publishing   a checkpoint is copied, and nobody has fetched it
    handing      ... and is on its way to the driver
    evaluating   on a batch of the validation data
    measured     with its shard evaluated, before that is added up
    ending       at the end of an epoch
    finishing    at the end of the training, before it is told
    stopping     no death: SIGSTOP before it asks who takes part
    frozen       no death: SIGSTOP while it computes, when the others wait in the all-reduce
    holding      no death: it is not ready before there is a file `release`

Besides, every worker says at each epoch's end which of its weights are not what they should be,
in the model that counts, and what its callbacks remember; the lowest rank of each update says in
which epoch it was, whose records are in it, and when; who adds up an evaluation says when. A file
`last_epoch` ends the training as a callback would, and a file `pause_s` says how long to rest
before each step. `joins.py` has a worker join in a phase of the loop.

Callers: `tests/chaos/storm.py` appends the import to a model file.
"""

import functools
import json
import os
import re
import signal
import socketserver
import time
from pathlib import Path

import faults
import joins
import numpy as np
from torchft import ProcessGroupGloo

from elasticdl.engines.elastic import allreduce
from elasticdl.engines.elastic.allreduce import Quorum
from elasticdl.engines.elastic.committer import ElasticCommitter
from elasticdl.engines.elastic.event_buffer import EventBuffer, SnapshotBuffer
from elasticdl.engines.elastic.state_transfer import Fetch
from elasticdl.engines.loop import Loop
from elasticdl.training.torch.hooks import TorchHooks

_SENT_AT_ONCE_BYTES = 1000
# As PyTorch and Keras call the weights of the models that count.
_COUNTS = re.compile("model/(.*/)?counts")


class _Here:
    """What is known of this process."""

    folder = Path(os.environ.get("ELASTICDL_STORM", "/nowhere"))
    rank = -1


def hit(point):
    """Die if it is this point's time."""
    if _is_time_for(point):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_time_for(point):
    try:
        (_Here.folder / point).unlink()
    except FileNotFoundError:
        return False
    told = json.dumps(
        {"point": point, "rank": _Here.rank, "pid": os.getpid(), "time_s": time.time()}
    )
    # One write of a few bytes: lines of several workers do not mix.
    with (_Here.folder / "hits.jsonl").open("a") as file:
        file.write(told + "\n")
    return True


def _number_in(name):
    try:
        return float((_Here.folder / name).read_text())
    except (FileNotFoundError, ValueError):
        return None


def instead_of(owner, name):
    """Return a decorator: its function is called in the place of another, which it is given."""

    def put(function):
        original = getattr(owner, name)

        @functools.wraps(original)
        def called(*args, **named):
            return function(original, *args, **named)

        setattr(owner, name, called)

    return put


def _install():
    @instead_of(ElasticCommitter, "__init__")
    def prepare(original, committer, trainer, *args, **named):
        if _is_time_for("holding"):
            while not (_Here.folder / "release").exists():
                time.sleep(0.1)

        @instead_of(trainer, "gradients")
        def gradients(original, *args):
            hit("tracing")
            return original(*args)

        original(committer, trainer, *args, **named)
        # Only what is traced while it prepares is the first trace.
        del trainer.gradients
        _watch(trainer)

    @instead_of(ElasticCommitter, "enter")
    def enter(original, committer, quorum, history, rank, *more):
        _Here.rank = rank
        original(committer, quorum, history, rank, *more)

    @instead_of(ElasticCommitter, "_apply")
    def apply(original, committer, verdict, progress):
        original(committer, verdict, progress)
        ranks = [row.rank for row in verdict.rows if row.num_batches]
        if _Here.rank == min(ranks, default=None):
            with (_Here.folder / "updates").open("a") as file:
                file.write(json.dumps([progress.ledger.epoch, ranks, time.time()]) + "\n")

    @instead_of(Loop, "_end_epoch")
    def end_epoch(original, loop):
        _weigh(loop)
        hit("ending")
        original(loop)

    @instead_of(EventBuffer, "finish")
    def finish(original, history):
        hit("finishing")
        original(history)

    _install_in_a_step()
    _install_in_a_heal()
    _install_between_steps()


def _install_between_steps():
    @instead_of(SnapshotBuffer, "save_in_background")
    def save(original, *args, **named):
        original(*args, **named)
        hit("publishing")

    @instead_of(SnapshotBuffer, "take")
    def take(original, *args):
        taken = original(*args)
        if taken is not None:
            hit("handing")
        return taken

    @instead_of(ElasticCommitter, "commit_evaluation")
    def commit_evaluation(original, *args, begins):
        hit("measured")
        commit = original(*args, begins=begins)
        if commit is not None:
            with (_Here.folder / "evaluations").open("a") as file:
                file.write(f"{time.time()}\n")
        return commit


def _install_in_a_step():
    @instead_of(ElasticCommitter, "begin")
    def begin_step(original, committer, *, ahead):
        time.sleep(_number_in("pause_s") or 0)
        original(committer, ahead=ahead)

    @instead_of(Quorum, "begin")
    def begin(original, quorum):
        hit("asking")
        if _is_time_for("stopping"):
            os.kill(os.getpid(), signal.SIGSTOP)
            # This thread may be the last one to be stopped, and must not have asked by then.
            time.sleep(0.1)
        original(quorum)

    @instead_of(Quorum, "sum")
    def add_up(original, quorum, buffer):
        if (_Here.folder / "late").exists():
            # So long that the others are inside.
            time.sleep(0.1)
            hit("late")
        summed = original(quorum, buffer)
        if summed:
            hit("summed")
        return summed

    @instead_of(ProcessGroupGloo, "allreduce")
    def allreduce(original, *args, **named):
        work = original(*args, **named)
        # It goes on in threads of torch: the others may or may not get the sum.
        hit("adding")
        return work

    @instead_of(Quorum, "vote")
    def vote(original, quorum, *, commit):
        committed = original(quorum, commit=commit)
        if committed:
            hit("voted")
        return committed


def _install_in_a_heal():
    # The state is by far the longest that a worker writes to a socket by Python's own server.
    @instead_of(socketserver._SocketWriter, "write")
    def write(original, writer, data):
        if len(data) > _SENT_AT_ONCE_BYTES and (_Here.folder / "serving").exists():
            original(writer, data[: len(data) // 2])
            hit("serving")
            return original(writer, data[len(data) // 2 :])
        return original(writer, data)

    @instead_of(Fetch, "read")
    def read(original, fetched):
        hit("fetching")
        return original(fetched)

    @instead_of(Loop, "join")
    def join(original, loop, checkpoint):
        original(loop, checkpoint)
        # The same takes over the state of a checkpoint, before the worker has a rank.
        if _Here.rank >= 0:
            hit("healed")
        if isinstance(loop.trainer.hooks, TorchHooks):
            # PyTorch has no callbacks, which would have known it from the state.
            _stop_after(loop.progress.ledger.epoch - 1, loop.trainer)
            loop._check_stop_requested(within_epoch=loop.progress.epoch_begun)


def _watch(trainer):
    """Reach into a trainer that has traced its steps."""

    @instead_of(trainer, "evaluate")
    def evaluate(original, batch, so_far=None):
        hit("evaluating")
        return original(batch, so_far)

    @instead_of(trainer, "apply")
    def apply(original, total):
        original(total)
        hit("applied")

    @instead_of(trainer, "gradients")
    def gradients(original, *args):
        if _is_time_for("frozen"):
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.1)
        return original(*args)

    @instead_of(trainer.hooks, "epoch_end")
    def epoch_end(original, epoch, logs):
        original(epoch, logs)
        _stop_after(epoch, trainer)


def _stop_after(epoch, trainer):
    """Ask for the end as a callback would, if an epoch is the last one."""
    last = _number_in("last_epoch")
    if last is None or epoch < last:
        return
    if isinstance(trainer.hooks, TorchHooks):
        # There is no callback that could ask.
        TorchHooks.stop_requested = True
    else:
        trainer.hooks._model.stop_training = True


def _weigh(loop):
    """Write down which weights are not the number of epochs."""
    state = loop.trainer.state()
    counts = next((array for path, array in state.items() if _COUNTS.fullmatch(path)), None)
    if counts is None:
        return
    epoch = loop.progress.ledger.epoch
    told = {
        "epoch": epoch,
        "rank": _Here.rank,
        "pid": os.getpid(),
        "callbacks": loop.trainer.hooks.state(),
        "wrong": {int(i): float(counts[i]) for i in np.flatnonzero(counts != epoch + 1)},
    }
    name = f"{epoch}-{os.getpid()}-{time.monotonic_ns()}.json"
    draft = _Here.folder / "replicas" / f".{name}"
    draft.write_text(json.dumps(told))
    # Whole or not at all: it may die here as well.
    draft.rename(draft.with_name(name))


# Files of a zoo may be imported several times in a process.
if _Here.folder.exists() and not hasattr(allreduce, "is_in_a_storm"):
    allreduce.is_in_a_storm = True
    _install()
    joins.install(_Here.folder, instead_of)
    faults.install(_Here.folder, os.environ.get("ELASTICDL_STORM_FAULTS", "").split())
