"""On workers of their own, the files of callbacks are whole when the job ends."""

import csv

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

WRITING = """
import time


class Slow(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        # The other worker is done in the meantime.
        if "save_weights" not in vars(self.model):
            time.sleep(5)
        self.model.save_weights("{folder}/last.weights.h5", overwrite=True)


def callbacks():
    return [
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ModelCheckpoint("{folder}/{{epoch}}.keras"),
        Slow(),
    ]
"""


def test_a_job_ends_when_the_worker_that_writes_has_written(train, zoo, tmp_path, monkeypatch):
    folder = tmp_path / "files"
    folder.mkdir()
    # The workers of a Ray that is started for the job share its directory.
    monkeypatch.chdir(folder)
    zoo(WRITING.format(folder=folder))

    train(num_epochs=2, num_workers=2, global_batch_size=32)

    assert sorted(path.name for path in folder.iterdir()) == [
        "1.keras",
        "2.keras",
        "last.weights.h5",
        "log.csv",
    ]
    rows = csv.DictReader((folder / "log.csv").read_text().splitlines())
    assert [row["epoch"] for row in rows] == ["0", "1"]
