"""Memory that a step frees is there for the next one."""

import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import batch_of, trainer_of

from elasticdl.training.torch.malloc_tuning import ReusedArray

# A process of its own: what lies in the heap of this one decides how much of it is given back.
# The outputs of each layer take 8 MiB, which are 2,048 pages.
STEPS = """
import resource
import numpy as np
from torch import nn
from elasticdl.data.batch import Batch
from tests.training.torch.conftest import definition_of, trainer_of

def model():
    return nn.Sequential(nn.Linear(4, 1024), nn.ReLU(), nn.Sigmoid(), nn.Linear(1024, 3))

batch = Batch(np.ones((2048, 4), np.float32), np.ones(2048, np.int64), 2048)
trainer = trainer_of(definition_of(model), batch)
faults = []
for _ in range(30):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    trainer.train_steps([batch])
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
# The first steps take the memory. In later ones the system may have taken pages of an idle process.
print(sorted(faults[5:])[12])
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back so soon"
)
def test_a_step_reuses_memory_freed_by_the_previous_step():
    done = subprocess.run([sys.executable, "-c", STEPS], check=True, capture_output=True, text=True)

    assert float(done.stdout) < 500


def test_an_array_is_reused_when_no_longer_referenced():
    arrays = ReusedArray()
    place = arrays.of_size(8).ctypes.data
    assert arrays.of_size(8).ctypes.data == place

    assert arrays.of_size(9).size == 9


@pytest.mark.parametrize(
    "kept", [lambda array: array, lambda array: array[2:4][1:], torch.from_numpy, memoryview]
)
def test_an_array_is_not_reused_while_a_view_exists(kept):
    arrays = ReusedArray()
    first = arrays.of_size(8)
    place, part = first.ctypes.data, kept(first)
    del first

    assert arrays.of_size(8).ctypes.data != place
    del part


def test_a_contribution_is_unchanged_while_the_next_is_computed():
    trainer, one, other = trainer_of(), batch_of(8, seed=1), batch_of(8, seed=2)
    first, _ = trainer.gradients(one)
    before = first.buffer.copy()
    second, _ = trainer.gradients(other)

    np.testing.assert_array_equal(first.buffer, before)
    assert not np.array_equal(second.buffer, before)
