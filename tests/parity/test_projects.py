"""Whole projects, as people write them, are evaluated, predict and are exported as well.

That they train as their plain scripts do, in all places, is held by `test_torch.py`.
"""

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.parity import features
from tests.parity.records import NUM_VALIDATION_RECORDS
from tests.parity.runner import Trainings, write_data

import elasticdl

PROJECTS = [
    feature
    for feature in features.all_features()
    if (feature.group == "Projects" and not feature.refusal) or feature.name == "hugging_face"
]


@pytest.mark.slow
@pytest.mark.parametrize("feature", PROJECTS, ids=lambda feature: feature.name)
def test_a_project_can_be_evaluated_predicted_with_and_exported(feature, tmp_path):
    write_data(tmp_path)
    trainings = Trainings(feature, tmp_path / "work", tmp_path, exports=True)
    (last,) = trainings.numbers("one process").history[-1:]
    output = tmp_path / "work" / "one_process"
    data = str(tmp_path / "validation.recordio")

    evaluated = elasticdl.evaluate(trained_model=str(output), data=data, minibatch_size=8)
    predicted = tmp_path / "predicted.parquet"
    elasticdl.predict(trained_model=str(output), data=data, output=str(predicted))

    assert evaluated.metrics["loss"] == pytest.approx(last["val_loss"], rel=1e-4)
    rows = pq.read_table(predicted)
    assert rows.num_rows == NUM_VALIDATION_RECORDS
    columns = [name for name in rows.column_names if name.startswith("output") or name == "logits"]
    assert columns, rows.column_names
    for name in columns:
        assert all(np.isfinite(np.ravel(row)).all() for row in rows[name].to_pylist())
    assert (output / "model.pt2").exists()
