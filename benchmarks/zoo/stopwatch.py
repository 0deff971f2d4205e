"""Times each turn of the training loop and its parts, in the process that trains.

The product has no hook for it: a model file of a benchmark (`timed_mlp.py`, `timed_large.py`)
imports this, and it wraps the functions from outside. Into `$BENCHMARK_TIMES/PID.jsonl` go

    {"ready_at": ...}                                     a worker has compiled all its steps
    {"at": ..., "step": ..., "ranks": [...], "turn_s": ..., "parts_s": {"sum": ..., ...}}

the second for each turn, when it is over: the clock, the updates made, who took part in the last
commit. Parts not called in a turn are left out. What a wrapper itself costs (about a microsecond)
falls to the turn and to none of its parts, and writing the line to neither.

`$BENCHMARK_GROUP_STEPS` limits how many steps the loop makes in one call.
"""
# ruff: noqa: SLF001 - what is timed need not be public

import functools
import json
import os
import threading
import time
from collections import defaultdict
from pathlib import Path

from elasticdl.engines import loop
from elasticdl.engines.elastic.committer import ElasticCommitter
from elasticdl.sharding.ledger import Ledger

FILE = Path(os.environ["BENCHMARK_TIMES"], f"{os.getpid()}.jsonl")
# Only the thread that trains has `parts_s`: batches are made in another one, which asks a ledger
# of its own.
_this_thread = threading.local()


def write(**values):
    # The file is closed again, so that nothing is lost with a process that is killed.
    with FILE.open("a") as file:
        file.write(json.dumps(values) + "\n")


def time_part(owner, name, part):
    """Let a function of a class or a module add its time to a part."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapper(*args, **named):
        begin = time.perf_counter()
        try:
            return function(*args, **named)
        finally:
            taken_s = time.perf_counter() - begin
            if hasattr(_this_thread, "parts_s"):
                _this_thread.parts_s[part] += taken_s

    setattr(owner, name, wrapper)


def time_loop(run):
    @functools.wraps(run)
    def wrapper(self):
        _this_thread.parts_s = defaultdict(float)
        for name in ("gradients", "apply", "train_steps"):
            time_part(type(self.trainer), name, name)
        if isinstance(self.committer, ElasticCommitter):
            # Not before: importing torchft comes after the threads are limited.
            quorum = type(self.committer._quorum)
            for name, part in (("wait", "quorum"), ("sum", "sum"), ("vote", "vote")):
                time_part(quorum, name, part)
        return run(self)

    return wrapper


def time_turn(turn):
    @functools.wraps(turn)
    def wrapper(self):
        _this_thread.parts_s.clear()
        begin = time.perf_counter()
        goes_on = turn(self)
        turn_s = time.perf_counter() - begin
        write(
            at=time.time(),
            step=self.trainer.step,
            ranks=[int(rank) for rank in self.ranks],
            turn_s=turn_s,
            parts_s=_this_thread.parts_s,
        )
        return goes_on

    return wrapper


def tell_ready(prepare):
    @functools.wraps(prepare)
    def wrapper(*args, **named):
        prepare(*args, **named)
        write(ready_at=time.time())

    return wrapper


def install():
    from elasticdl.engines.elastic import committer

    group_steps = os.environ.get("BENCHMARK_GROUP_STEPS")
    if group_steps:
        # No option has it.
        loop._MAX_GROUP_STEPS = int(group_steps)
    for name in ("advance", "assign", "release", "release_missing"):
        time_part(Ledger, name, "ledger")
    for name in ("encode", "decide_commit", "chain"):
        time_part(committer, name, "rows")
    loop.Loop.run = time_loop(loop.Loop.run)
    loop.Loop._turn = time_turn(loop.Loop._turn)
    ElasticCommitter.__init__ = tell_ready(ElasticCommitter.__init__)


# Whoever opens a zoo may import it more than once.
if not hasattr(loop.Loop.run, "__wrapped__"):
    install()
