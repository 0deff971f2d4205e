"""Run benchmarks by name, all without one."""

import importlib
import signal
import sys

from benchmarks.record import keep

ALL = [
    "recordio_read",
    "shuffle",
    "training",
    "startup",
    "checkpointing",
    "ledger",
    "failures",
    "federation",
    "deployment",
    "prediction",
    "report",
    "sessions",
    "sql",
    "sql_models",
    "workers",
    "torch_loop",
    "lengths",
    "page",
    "index",
    "submission",
]


def main(names):
    # A shell lets its background processes ignore Ctrl-C, which is how trainings are ended here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in names or ALL:
        print(f"== {name}")
        keep(name, importlib.import_module(f"benchmarks.{name}").run())


main(sys.argv[1:])
