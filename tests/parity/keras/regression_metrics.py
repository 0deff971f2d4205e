"""MSE, RMSE, MAE, MAPE, LogCosh, CosineSimilarity."""

import keras
from shared import fit, mlp, named, numbers, table_schema

GROUP = "Metrics"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {
        "mse": keras.metrics.MeanSquaredError(),
        "rmse": keras.metrics.RootMeanSquaredError(),
        "mae": keras.metrics.MeanAbsoluteError(),
        "log_cosh": keras.metrics.LogCoshError(),
        "cosine": keras.metrics.CosineSimilarity(),
    }


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
