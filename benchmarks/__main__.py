"""Run benchmarks by name, all without one."""

import importlib
import sys

from benchmarks.record import keep

ALL = [
    "recordio_read",
    "training",
    "startup",
    "checkpointing",
    "ledger",
    "failures",
    "prediction",
    "workers",
]


def main(names):
    for name in names or ALL:
        print(f"== {name}")
        keep(name, importlib.import_module(f"benchmarks.{name}").run())


main(sys.argv[1:])
