"""PearsonCorrelation and CosineSimilarity along the batch axis."""

import keras
from shared import fit, mlp, named, numbers, table_schema

GROUP = "Metrics"
EXPECT = {
    "two workers": "differs: the metric is a mean over minibatches, as in Keras, and those of "
    "workers are smaller; the weights are equal"
}
SAME_WEIGHTS = True

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {
        "pearson": keras.metrics.PearsonCorrelation(axis=0),
        "concordance": keras.metrics.ConcordanceCorrelation(axis=0),
        "cosine": keras.metrics.CosineSimilarity(axis=0),
    }


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
