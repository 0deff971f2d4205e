"""An update is made of a fixed number of minibatches."""

import numpy as np
import pytest

from elasticdl.engines.gradient_accumulation import Accumulator
from elasticdl.errors import UsageError
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished
from elasticdl.training.trainer import Contribution


class Recorder:
    """A trainer that keeps what is applied to it."""

    def __init__(self):
        self.applied = []

    def apply(self, total):
        self.applied.append((total.buffer.tolist(), total.num_examples))


def contribution(value, num_examples=2):
    return Contribution(np.float32([value]), num_examples)


def test_an_update_is_made_when_enough_batches_are_summed():
    trainer = Recorder()
    accumulator = Accumulator(trainer, 3)

    accumulator.add(contribution(1), 2, last=False)
    assert trainer.applied == []
    assert accumulator.num_missing == 1
    accumulator.add(contribution(10), 1, last=False)

    assert trainer.applied == [([11.0], 4)]
    assert accumulator.num_missing == 3


def test_the_last_update_of_an_epoch_uses_the_remaining_batches():
    trainer = Recorder()
    accumulator = Accumulator(trainer, 3)

    accumulator.add(contribution(5), 1, last=True)

    assert trainer.applied == [([5.0], 2)]


def test_a_partial_sum_can_be_taken_over():
    first, second = Accumulator(Recorder(), 2), Accumulator(Recorder(), 2)
    first.add(contribution(1), 1, last=False)

    rest = second.load_state({**first.state(), "model/w": np.float32([7])})

    second.add(contribution(2), 1, last=False)
    assert list(rest) == ["model/w"]
    assert second._trainer.applied == [([3.0], 4)]
    assert second.state() == {}


def test_a_reused_buffer_does_not_change_the_sum():
    accumulator = Accumulator(Recorder(), 2)
    buffer = np.float32([1.0])
    accumulator.add(Contribution(buffer, 1), 1, last=False)

    buffer[:] = 99

    np.testing.assert_array_equal(accumulator.state()["accumulator/buffer"], [1.0])


def test_a_global_batch_size_updates_as_a_larger_minibatch(train, tmp_path):
    # 150 records: 9 minibatches of 16 and one of 6; two of them make an update.
    summed = train(
        output=str(tmp_path / "summed"), global_batch_size=32, num_epochs=2, shuffle=False
    )
    whole = train(output=str(tmp_path / "whole"), minibatch_size=32, num_epochs=2, shuffle=False)

    assert summed.step == whole.step == 10
    epochs = [
        e for e in read_events(tmp_path / "summed" / "events.jsonl") if isinstance(e, EpochFinished)
    ]
    assert [e.step for e in epochs] == [5, 10]


def test_an_invalid_global_batch_size_is_refused(train):
    with pytest.raises(UsageError, match="^global_batch_size=40 is not a multiple of minib"):
        train(global_batch_size=40)


def test_empty_batches_count_but_alone_make_no_update():
    trainer = Recorder()
    accumulator = Accumulator(trainer, 2)

    accumulator.add(None, 1, last=False)
    other = Accumulator(Recorder(), 2)
    other.load_state(accumulator.state())
    assert other.num_missing == 1
    accumulator.add(contribution(7), 1, last=False)
    accumulator.add(None, 2, last=False)
    accumulator.add(None, 1, last=True)

    assert trainer.applied == [([7.0], 2)]
    assert (accumulator.num_missing, accumulator.state()) == (2, {})
