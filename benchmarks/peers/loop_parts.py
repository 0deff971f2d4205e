"""What the scripts of `torch_loop.py`'s peers share: options, the loader, and a clock.

    SCRIPT MODEL FILE.recordio MINIBATCH_SIZE NUM_WORKERS SECONDS

The loader reads the same RecordIO file as ElasticDL, by the reader that ElasticDL has: a minibatch
is picked and decoded at once (`__getitems__`), and made by the model file's `input_fn`.
"""

import importlib
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "zoo"))

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from elasticdl.data.schema import Schema
from elasticdl.data.sources import open_source
from elasticdl.data.unit_reader import UnitReader


class Options(NamedTuple):
    model: str
    file: str
    minibatch_size: int
    num_workers: int
    seconds: float


def options():
    model, file, minibatch_size, num_workers, seconds = sys.argv[1:]
    return Options(model, file, int(minibatch_size), int(num_workers), float(seconds))


def zoo_of(options):
    return importlib.import_module(options.model)


class Records(Dataset):
    """The records of a file, decoded; each process that reads them opens it by itself."""

    def __init__(self, file, schema):
        self._file, self._schema = file, schema
        self._num_records = open_source(file).num_records
        self._reader = None

    def __len__(self):
        return self._num_records

    def __getitems__(self, numbers):
        if self._reader is None:
            self._reader = UnitReader(open_source(self._file), self._schema)
        gathered = self._reader.gather(np.asarray(numbers, np.int64))
        return gathered.records(0, len(numbers))


def loader_of(options, zoo, make_sampler=None):
    """Return minibatches of an epoch, each epoch in another order.

    Args:
        options: Of the script.
        zoo: The model file.
        make_sampler: Dataset -> sampler; None shuffles all records.
    """
    records = Records(options.file, Schema.from_user(zoo.data_schema()))
    sampler = None if make_sampler is None else make_sampler(records)

    def collate(some):
        features, labels = zoo.input_fn(some)
        tensors = {name: torch.from_numpy(array) for name, array in features.items()}
        return tensors, torch.from_numpy(labels)

    return DataLoader(
        records,
        options.minibatch_size,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=options.num_workers,
        persistent_workers=options.num_workers > 0,
        collate_fn=collate,
        drop_last=True,
    )


class Clock:
    """Counts steps, from a third of the seconds after the first one to their end."""

    def __init__(self, seconds):
        self._seconds, self._steps = seconds, 0
        self._first_s, self._begin, self._last = None, None, None

    def step_is_last(self):
        """Count a step that has ended; return whether the seconds are over."""
        now = time.monotonic()
        self._steps += 1
        if self._first_s is None:
            self._first_s = now
        if self._begin is None and now - self._first_s > self._seconds / 3:
            self._begin = now, self._steps
        self._last = now, self._steps
        return now - self._first_s > self._seconds

    def print_rate(self, records_a_step):
        (first_s, first), (last_s, last) = self._begin, self._last
        print("records/s", (last - first) * records_a_step / (last_s - first_s), flush=True)
