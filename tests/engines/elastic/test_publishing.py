"""What is published after a training on workers, where that is not what they trained last."""

import numpy as np
import pytest
from tests.engines.test_in_process import weights

from elasticdl.artifacts.checkpoint import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

AVERAGES_AND_BEST = """
def custom_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def optimizer():
    return keras.optimizers.SGD(-0.01, use_ema=True, ema_momentum=0.9)


def callbacks():
    if {stops}:
        return [keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True)]
    return []
"""


# Where training stops early, the best weights are averages too.
@pytest.mark.parametrize("stops", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_workers_publish_what_one_process_publishes(train, zoo, tmp_path, stops):
    zoo(AVERAGES_AND_BEST.format(stops=stops))
    more = {"num_epochs": 2, "minibatch_size": 10, "global_batch_size": 150, "shuffle": False}

    train(**more, output=str(tmp_path / "alone"))
    train(**more, output=str(tmp_path / "workers"), num_workers=2)

    alone, workers = (weights(tmp_path / name) for name in ("alone", "workers"))
    trained = CheckpointStore(OutputFolder(tmp_path / "workers")).latest().checkpoint.state
    for path, array in alone.items():
        np.testing.assert_allclose(workers[path], array, rtol=1e-4, atol=1e-5)
        assert np.abs(trained[f"model/{path}"] - workers[path]).max() > 1e-6
