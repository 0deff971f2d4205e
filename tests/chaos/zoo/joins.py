"""Makes a worker join in a phase of the loop that the storm names.

    awaited    names the phase, and has every step begin with a quorum of its own
    joining    the next worker that gets a rank takes this away and stands at the door,
    door       says so with this, and waits for
    reached    which those that train leave when they are in the phase, with their place; there
               they wait for
    asked      which it leaves when it has asked to take part
    joins      a line of JSON for each that came in: which phase was awaited, and which it was

All that train come to the same phase, so all wait, and the quorum that they ask for next is the
one that the other is in.

Callers: `kill_points.py`, in every worker.
"""

import json
import math
import os
import time

from elasticdl.engines.elastic.allreduce import Quorum
from elasticdl.engines.loop import Loop

_LONGEST_WAIT_S = 20.0
# Its request is on its way to the Lighthouse.
_ON_ITS_WAY_S = 0.2


class _Joiner:
    """What is known of this process: the phase that it is to join in."""

    phase = None


def phase_of(loop):
    """Return in which phase of its loop a worker is between two commits."""
    progress, step = loop.progress, loop.trainer.step
    if loop._is_over() or loop.trainer.hooks.stop_requested:
        return "end"
    if progress.evaluation is not None:
        return "validation"
    if progress.first_step == step and progress.ledger.epoch > 0 and not loop._within_an_update():
        return "epoch end"
    interval = loop.options.checkpoint_steps
    if interval and step and step % interval == 0 and not loop._within_an_update():
        return "checkpoint"
    return "training"


def _place_of(loop):
    return [loop.trainer.step, loop.progress.evaluation is not None, loop._within_an_update()]


class _Tokens:
    """The files that the storm and the workers leave for each other."""

    def __init__(self, folder):
        self._folder = folder

    def awaited(self):
        """Return the phase that a join is awaited in."""
        try:
            return (self._folder / "awaited").read_text()
        except FileNotFoundError:
            return None

    def has(self, name):
        return (self._folder / name).exists()

    def drop(self, name, content=""):
        """Leave a file, whole or not at all."""
        draft = self._folder / f"{name}.{os.getpid()}"
        draft.write_text(content)
        draft.rename(self._folder / name)

    def take(self, name):
        """Return whether it was there; only one gets it."""
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def wait_for(self, name, at_most_s=math.inf):
        """Return when it is there, or nobody is awaited any more."""
        until_s = time.monotonic() + at_most_s
        while not self.has(name) and self.awaited() and time.monotonic() < until_s:
            time.sleep(0.01)

    def tell(self, told):
        """Say where a worker has joined."""
        with (self._folder / "joins").open("a") as file:
            file.write(json.dumps(told) + "\n")

    def place_reached(self):
        """Return where those that wait are; None if nobody is awaited any more."""
        try:
            return json.loads((self._folder / "reached").read_text())
        except FileNotFoundError:
            return None


def install(folder, instead_of):
    """Install it in a worker."""
    tokens = _Tokens(folder)
    is_old = Quorum.is_old.fget
    Quorum.is_old = property(lambda quorum: tokens.awaited() is not None or is_old(quorum))

    @instead_of(Loop, "_prepare_commit")
    def prepare(original, loop):
        goes_on = original(loop)
        is_due = _Joiner.phase is None and tokens.has("door") and not tokens.has("asked")
        if goes_on and is_due and tokens.awaited() == phase_of(loop):
            tokens.drop("reached", json.dumps(_place_of(loop)))
            tokens.wait_for("asked", _LONGEST_WAIT_S)
            time.sleep(_ON_ITS_WAY_S)
        return goes_on

    _install_in_the_joiner(tokens, instead_of)


def _install_in_the_joiner(tokens, instead_of):
    @instead_of(Quorum, "__init__")
    def connect(original, quorum, **named):
        phase = tokens.awaited()
        if phase is not None and tokens.take("joining"):
            _Joiner.phase = phase
            tokens.drop("door")
            # Before it has connected: who has is waited for.
            tokens.wait_for("reached")
        original(quorum, **named)

    @instead_of(Quorum, "begin")
    def begin(original, quorum):
        original(quorum)
        if _Joiner.phase is not None:
            tokens.drop("asked")

    @instead_of(Loop, "join")
    def join(original, loop, checkpoint):
        original(loop, checkpoint)
        if _Joiner.phase is None:
            return
        # That a callback asks for the end, callbacks know, and PyTorch has none.
        is_there = tokens.place_reached() == _place_of(loop)
        was = _Joiner.phase if is_there else phase_of(loop)
        tokens.tell({"awaited": _Joiner.phase, "was": was, "place": _place_of(loop)})
        _Joiner.phase = None
