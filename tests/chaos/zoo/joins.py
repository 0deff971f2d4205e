"""Makes a worker join in a phase of the loop that the storm names.

    awaited    names the phase, and has every step begin with a quorum of its own
    joining    the next worker that gets a slot takes this away and stands at the door,
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
import os
import time

from elasticdl.engines.elastic.quorum import Quorum
from elasticdl.engines.loop import Loop

_LONGEST_WAIT_S = 20.0
# Its request is on its way to the Lighthouse.
_ON_ITS_WAY_S = 0.2


class _Joiner:
    """What is known of this process: the phase that it is to join in."""

    phase = None


def phase_of(loop):
    """Return in which phase of its loop a worker is between two commits."""
    place, step = loop.place, loop.trainer.step
    if loop._is_over() or loop.trainer.hooks.stop_requested:
        return "end"
    if place.evaluation is not None:
        return "validation"
    if place.first_step == step and place.ledger.epoch > 0 and not loop._within_an_update():
        return "epoch end"
    interval = loop.options.checkpoint_steps
    if interval and step and step % interval == 0 and not loop._within_an_update():
        return "checkpoint"
    return "training"


def _place_of(loop):
    return [loop.trainer.step, loop.place.evaluation is not None, loop._within_an_update()]


def install(folder, instead_of):
    """Install it in a worker."""

    def awaited():
        try:
            return (folder / "awaited").read_text()
        except FileNotFoundError:
            return None

    def wait_for(name):
        until_s = time.monotonic() + _LONGEST_WAIT_S
        while not (folder / name).exists() and awaited() and time.monotonic() < until_s:
            time.sleep(0.01)

    @instead_of(Quorum, "__init__")
    def connect(original, quorum, **named):
        phase = awaited()
        if phase is not None and _takes(folder / "joining"):
            _Joiner.phase = phase
            (folder / "door").touch()
            # Before it has connected: who has is waited for.
            while not (folder / "reached").exists() and awaited():
                time.sleep(0.01)
        original(quorum, **named)

    @instead_of(Quorum, "begin")
    def begin(original, quorum):
        original(quorum)
        if _Joiner.phase is not None:
            (folder / "asked").touch()

    is_old = Quorum.is_old.fget
    Quorum.is_old = property(lambda quorum: awaited() is not None or is_old(quorum))

    @instead_of(Loop, "_prepare_commit")
    def prepare(original, loop):
        goes_on = original(loop)
        is_due = _Joiner.phase is None and (folder / "door").exists()
        if goes_on and is_due and not (folder / "asked").exists() and awaited() == phase_of(loop):
            # Whole or not at all.
            (folder / f"reached.{os.getpid()}").write_text(json.dumps(_place_of(loop)))
            (folder / f"reached.{os.getpid()}").rename(folder / "reached")
            wait_for("asked")
            time.sleep(_ON_ITS_WAY_S)
        return goes_on

    @instead_of(Loop, "join")
    def join(original, loop, checkpoint):
        original(loop, checkpoint)
        if _Joiner.phase is not None:
            # That a callback asks for the end, callbacks know, and PyTorch has none.
            is_there = json.loads((folder / "reached").read_text()) == _place_of(loop)
            was = _Joiner.phase if is_there else phase_of(loop)
            told = {"awaited": _Joiner.phase, "was": was, "place": _place_of(loop)}
            _Joiner.phase = None
            with (folder / "joins").open("a") as file:
                file.write(json.dumps(told) + "\n")


def _takes(token):
    try:
        token.unlink()
    except FileNotFoundError:
        return False
    return True
