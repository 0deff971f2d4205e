"""Settings of a framework after jobs, in a process that runs several."""

import pytest
import torch

from elasticdl.training import framework_settings
from elasticdl.training.torch import determinism


@pytest.fixture
def _nondeterministic():
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.mark.usefixtures("_nondeterministic")
def test_a_job_that_ends_leaves_another_one_deterministic():
    with framework_settings.restored():
        determinism.be_deterministic()
        with framework_settings.restored():
            determinism.be_deterministic()

        assert torch.get_deterministic_debug_mode() == 1

    assert torch.get_deterministic_debug_mode() == 0
