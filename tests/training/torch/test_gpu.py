"""What only a GPU shows: where tensors are, after a step and after a resume.

`tests/conftest.py` hides GPUs from all other tests, whose results are compared bit by bit; run
this file with `ELASTICDL_TEST_GPU=1`. What needs no GPU to be seen is tested without one.
"""

import os

import pytest
import torch
from tests.training.torch.conftest import batch_of, definition_of, same_bits, total_of, trainer_of
from torch import nn

from elasticdl.training.torch import failures
from elasticdl.training.torch.value_codec import Codec

needs_gpu = pytest.mark.skipif(
    not (os.environ.get("ELASTICDL_TEST_GPU") and torch.cuda.is_available()), reason="needs a GPU"
)


class Lookahead(torch.optim.SGD):
    """Keeps slow weights in an attribute."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for fast, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
            fast.copy_(slow.lerp_(fast, 0.5))


@needs_gpu
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, Lookahead])
def test_a_resumed_training_keeps_its_state_on_its_devices(optimizer):
    definition = definition_of(optimizer=lambda parameters: optimizer(parameters, 0.1))
    whole, first, second = (trainer_of(definition) for _ in range(3))
    batches = [batch_of(8, seed) for seed in range(4)]
    whole.train_steps(batches)
    first.train_steps(batches[:2])

    second.load_state(first.state())
    second.train_steps(batches[2:])

    assert same_bits(second.state(), whole.state())


@needs_gpu
@pytest.mark.parametrize("has_buffers", [False, True])
def test_gradients_of_two_workers_are_summed(has_buffers):
    def model():
        return nn.Sequential(nn.Linear(4, 3), *([nn.BatchNorm1d(3)] if has_buffers else []))

    trainers = [trainer_of(definition_of(model)) for _ in range(2)]
    total = total_of(*(t.gradients(batch_of(8, i))[0] for i, t in enumerate(trainers)))

    for trainer in trainers:
        trainer.apply(total)

    assert same_bits(trainers[0].state(), trainers[1].state())


@needs_gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns(precision):
    trainer = trainer_of(definition_of(precision=precision))
    batch = batch_of(64)

    losses = trainer.train_steps([batch] * 30).losses

    assert losses[-1] < 0.9 * losses[0]


@needs_gpu
def test_a_tensor_on_the_cpu_is_explained():
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x) + torch.ones(len(x), 3)

    with pytest.raises(Exception, match=r"device=x\.device"):
        trainer_of(definition_of(Adds))


def test_a_tensor_is_restored_to_its_device():
    kept = Codec({}).to_arrays([torch.ones(2)])

    [restored] = Codec({}).to_values(kept)

    assert restored.device.type == "cpu"
    assert b'"device": "cpu"' in kept["values"].tobytes()


@pytest.mark.parametrize(
    ("has_gpu", "text", "is_explained"),
    [
        (True, "Expected all tensors to be on the same device, but found two", True),
        (True, "'lengths' argument should be a 1D CPU int64 tensor, but got cuda", True),
        (True, "mat1 and mat2 shapes cannot be multiplied", False),
        # Such as meta tensors: no GPU has to do with it.
        (False, "Expected all tensors to be on the same device, but found two", False),
    ],
)
def test_tensors_on_two_devices_are_explained(monkeypatch, has_gpu, text, is_explained):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)

    advice = failures.device_advice(RuntimeError(text))

    assert ("device=x.device" in advice) is is_explained
