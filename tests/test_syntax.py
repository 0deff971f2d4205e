"""Parsing Python from several threads."""

import gc
import sys
import threading

from elasticdl.zoo.catalogue import entries
from elasticdl.zoo.params import parse_params


def test_threads_can_parse_concurrently():
    # What lets another thread run within a parse: Python code that the collector calls.
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    failures = []

    def parse():
        try:
            for _ in range(3):
                entries()
                parse_params("hidden_units=[1, 2, 3]")
        except SystemError as error:
            failures.append(error)

    def call(*_):
        sum(range(50))

    threads = [threading.Thread(target=parse) for _ in range(4)]
    # It looks at what is made here alone: other tests may have left much.
    gc.freeze()
    gc.callbacks.append(call)
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
        gc.callbacks.remove(call)
        gc.unfreeze()

    assert not failures
