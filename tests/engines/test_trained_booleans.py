"""A trained model's input function gets booleans if, and only if, it got them in training."""

import numpy as np
import pandas as pd
import pytest

import elasticdl
from elasticdl.errors import ElasticDLError

FILE = """
import numpy as np
import torch
from torch import nn


def custom_model():
    return nn.Linear(2, 1)


def input_fn(records):
    ok = np.stack([record["ok"] for record in records])
    # For the integer 1, ~ok is -2.
    x = np.concatenate([ok, ~ok], axis=1).astype("float32")
    return x, ok.astype("float32")


loss = nn.MSELoss()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""
OK = np.arange(8) % 3 == 0


@pytest.mark.parametrize("trained_on", [bool, "int64"])
def test_integers_and_booleans_are_those_of_the_training(tmp_path, trained_on):
    (tmp_path / "masked.py").write_text(FILE)
    elasticdl.train(
        model_zoo=str(tmp_path),
        model_def="masked",
        data=pd.DataFrame({"ok": OK.astype(trained_on)}),
        output=str(tmp_path / "out"),
        num_epochs=2,
    )
    pd.DataFrame({"ok": OK.astype("int64")}).to_csv(tmp_path / "numbers.csv", index=False)
    weight, bias = (
        value.detach().numpy() for value in elasticdl.load(tmp_path / "out").state_dict().values()
    )
    given = OK.astype(trained_on)
    expected = np.stack([given, ~given], axis=1).astype("float32") @ weight.T + bias

    for data in (pd.DataFrame({"ok": OK}), str(tmp_path / "numbers.csv")):
        found = elasticdl.load(tmp_path / "out").predict(data)
        np.testing.assert_allclose(np.ravel(found), np.ravel(expected), rtol=1e-5)
        output = str(tmp_path / f"{type(data).__name__}.csv")
        elasticdl.predict(trained_model=str(tmp_path / "out"), data=data, output=output)
        np.testing.assert_allclose(pd.read_csv(output)["output"], np.ravel(expected), rtol=1e-5)


def test_validation_data_get_the_booleans_of_the_training_data(tmp_path):
    (tmp_path / "masked.py").write_text(FILE)
    pd.DataFrame({"ok": OK.astype("int64")}).to_csv(tmp_path / "numbers.csv", index=False)

    trained = elasticdl.train(
        model_zoo=str(tmp_path), model_def="masked", data=pd.DataFrame({"ok": OK}),
        validation_data=str(tmp_path / "numbers.csv"), output=str(tmp_path / "out"),
    )  # fmt: skip

    evaluated = elasticdl.evaluate(
        trained_model=str(tmp_path / "out"), data=pd.DataFrame({"ok": OK})
    )
    assert trained.metrics["val_loss"] == pytest.approx(evaluated.metrics["loss"], rel=1e-5)


def test_other_numbers_in_place_of_booleans_are_refused(tmp_path):
    (tmp_path / "masked.py").write_text(FILE)
    elasticdl.train(
        model_zoo=str(tmp_path), model_def="masked", data=pd.DataFrame({"ok": OK}),
        output=str(tmp_path / "out"),
    )  # fmt: skip

    with pytest.raises(ElasticDLError, match="'ok' has the value 2; it was true or false in the"):
        elasticdl.predict(
            trained_model=str(tmp_path / "out"), data=pd.DataFrame({"ok": [1, 2]}),
            output=str(tmp_path / "p.csv"),
        )  # fmt: skip
