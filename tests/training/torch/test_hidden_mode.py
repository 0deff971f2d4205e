"""A mode that watches PyTorch's calls must not change what modules compute."""

import threading

import pytest
import torch
from torch import nn, overrides

from elasticdl.training.torch.hidden_mode import HiddenMode

# Nested tensors, which the fast path makes of padded batches, warn that they will change.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


class Watch(HiddenMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def padded():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False, False, True], [False, True, True]])
    return lambda: encoder(torch.ones(2, 3, 8), src_key_padding_mask=padding)


def test_an_encoder_in_evaluation_returns_the_same_under_a_watching_mode(padded):
    with torch.no_grad():
        expected = padded()
        with Watch() as watch:
            found = padded()

    assert (expected[1, 2] == 0).all()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert watch.names


def test_another_mode_below_is_still_found(padded):
    with torch.no_grad(), torch.device("cpu"):
        expected = padded()
        with Watch():
            found = padded()

    assert (expected[1, 2] != 0).any()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_tensor_subclasses_are_still_found():
    class Own(torch.Tensor):
        pass

    with Watch():
        assert overrides.has_torch_function((torch.ones(1).as_subclass(Own),))
        assert not overrides.has_torch_function((torch.ones(1),))


def test_the_function_of_torch_is_back_after_the_last_block():
    with pytest.raises(ValueError, match="inside"), Watch(), Watch():
        raise ValueError("inside")

    assert overrides.has_torch_function is torch._C._has_torch_function


def test_a_block_in_one_thread_does_not_end_that_of_another(padded):
    has_begun, may_end = threading.Event(), threading.Event()

    def other():
        with Watch():
            has_begun.set()
            may_end.wait(10)

    thread = threading.Thread(target=other)
    with torch.no_grad():
        expected = padded()
        with Watch():
            thread.start()
            has_begun.wait(10)
            may_end.set()
            thread.join()
            found = padded()

    torch.testing.assert_close(found, expected, rtol=0, atol=0)
