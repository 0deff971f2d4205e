"""What nobody waits for gives way, and nothing that computes later keeps its low priority."""

import os
import subprocess
import sys
import threading

import pytest

from elasticdl.engines.elastic.low_priority import low_priority


def own():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_call_runs_at_a_lower_priority_than_its_caller():
    before = own()

    assert low_priority(own) == before + 10
    assert own() == before


def test_errors_are_raised_in_the_caller():
    with pytest.raises(ZeroDivisionError):
        low_priority(lambda: 1 / 0)


COMPILES_IN_THE_BACKGROUND = """
import os, time
import tensorflow as tf
from elasticdl.engines.elastic.low_priority import low_priority
from elasticdl.training.create import start_threads

def compute():
    matrix = tf.random.uniform([256, 256])
    step = tf.function(lambda m: tf.reduce_sum(tf.map_fn(lambda row: tf.sort(row), m @ m)))
    return float(step(matrix))

start_threads()
low_priority(compute)
compute()
time.sleep(0.2)
for number in os.listdir("/proc/self/task"):
    print(os.getpriority(os.PRIO_PROCESS, int(number)))
"""


@pytest.mark.slow
def test_tensorflows_threads_keep_their_priority():
    done = subprocess.run(
        [sys.executable, "-c", COMPILES_IN_THE_BACKGROUND],
        env={**os.environ, "TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )

    priorities = [int(line) for line in done.stdout.split()]
    assert len(priorities) > 4
    assert set(priorities) == {own()}
