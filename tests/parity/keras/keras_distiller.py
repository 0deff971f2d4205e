"""`keras.distillation.Distiller`: distils the logits and a hidden layer of a frozen teacher."""

import keras
from keras import layers
from keras.distillation import Distiller, FeatureDistillation, LogitsDistillation
from shared import classes, fit, named, table_schema

GROUP = "Custom training"
EXPECT = (
    "refused: it receives the losses in `compile`, which would not be called; write a "
    "`compute_loss`"
)
REFUSAL = r"Distiller has its own compile\(\)"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(name, *units):
    inputs = keras.Input((8,))
    x = inputs
    for count in units:
        x = layers.Dense(count, activation="relu")(x)
    x = layers.Dense(6, activation="tanh", name="features")(x)
    return keras.Model(inputs, layers.Dense(3)(x), name=name)


def custom_model():
    return Distiller(
        teacher=network("teacher", 16, 12),
        student=network("student", 6),
        distillation_losses=[
            LogitsDistillation(temperature=3.0),
            FeatureDistillation(
                loss="mse", teacher_layer_name="features", student_layer_name="features"
            ),
        ],
        distillation_loss_weights=[1.0, 0.5],
        student_loss_weight=0.4,
    )


def optimizer():
    return keras.optimizers.Adam(0.02)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
