"""Import paths of published model files still lead somewhere."""

from __future__ import annotations

import pytest


def test_mode_is_the_same_class_as_in_definitions() -> None:
    from elasticdl.definition import Mode
    from elasticdl.python.common import constants

    assert constants.Mode is Mode
    # Old files compare with plain text.
    assert constants.Mode.TRAINING == "training"


def test_a_processor_can_be_subclassed() -> None:
    from elasticdl.python.worker.prediction_outputs_processor import (
        BasePredictionOutputsProcessor,
    )

    class Mine(BasePredictionOutputsProcessor):
        def process(self, predictions, worker_id):
            return predictions

    assert Mine().process(3, 0) == 3
    with pytest.raises(TypeError):
        BasePredictionOutputsProcessor()


def test_a_reader_has_two_old_import_paths() -> None:
    from elasticdl.python.data import data_reader as first
    from elasticdl.python.data.reader import data_reader as later

    assert first.AbstractDataReader is later.AbstractDataReader
    assert first.Metadata(column_names=["a"]).column_names == ["a"]


def test_writing_to_a_table_service_is_refused_with_an_alternative() -> None:
    from elasticdl.errors import UsageError
    from elasticdl.python.common.constants import ODPSConfig
    from elasticdl.python.common.log_utils import default_logger
    from elasticdl.python.data.odps_io import ODPSWriter

    default_logger.debug("%s", ODPSConfig.PROJECT_NAME)
    with pytest.raises(UsageError, match="Unset the MAXCOMPUTE"):
        ODPSWriter("project", columns=[])
