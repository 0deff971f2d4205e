"""Timeseries classification with a transformer (Keras example)."""

import keras
import numpy as np
from keras import layers
from shared import fit, named

GROUP = "Models"

loss = "sparse_categorical_crossentropy"


def data_schema():
    return [
        {"name": "series", "shape": [6, 3], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    series = np.stack([record["series"].reshape(18, 1) for record in records])
    return series, np.stack([record["label"] for record in records])[:, 0]


def transformer_encoder(inputs, head_size, num_heads, ff_dim, dropout=0):
    # Attention and Normalization
    x = layers.MultiHeadAttention(key_dim=head_size, num_heads=num_heads, dropout=dropout)(
        inputs, inputs
    )
    x = layers.Dropout(dropout)(x)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    res = x + inputs

    # Feed Forward Part
    x = layers.Conv1D(filters=ff_dim, kernel_size=1, activation="relu")(res)
    x = layers.Dropout(dropout)(x)
    x = layers.Conv1D(filters=inputs.shape[-1], kernel_size=1)(x)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return x + res


def build_model(
    input_shape,
    head_size,
    num_heads,
    ff_dim,
    num_transformer_blocks,
    mlp_units,
    dropout=0,
    mlp_dropout=0,
):
    inputs = keras.Input(shape=input_shape)
    x = inputs
    for _ in range(num_transformer_blocks):
        x = transformer_encoder(x, head_size, num_heads, ff_dim, dropout)

    x = layers.GlobalAveragePooling1D(data_format="channels_last")(x)
    for dim in mlp_units:
        x = layers.Dense(dim, activation="relu")(x)
        x = layers.Dropout(mlp_dropout)(x)
    outputs = layers.Dense(3, activation="softmax")(x)
    return keras.Model(inputs, outputs)


def custom_model():
    return build_model(
        (18, 1),
        head_size=8,
        num_heads=2,
        ff_dim=4,
        num_transformer_blocks=2,
        mlp_units=[16],
        mlp_dropout=0,
        dropout=0,
    )


def optimizer():
    return keras.optimizers.SGD(learning_rate=0.05)


def eval_metrics_fn():
    return {"sparse_categorical_accuracy": keras.metrics.SparseCategoricalAccuracy()}


def callbacks():
    return [keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True)]


def plain(data):
    model = custom_model()
    model.compile(loss=loss, optimizer=optimizer(), metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn, callbacks())
