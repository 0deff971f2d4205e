"""keras.utils.FeatureSpace with `adapt` and a cross."""

import warnings

import keras
import numpy as np
import tensorflow as tf
from keras.utils import FeatureSpace
from shared import table_schema, text_schema, tokens_schema

GROUP = "Preprocessing layers"

# Keras says so of the inputs that `get_inputs` returns.
warnings.filterwarnings("ignore", "The structure of `inputs`|Exception encountered when calling")
loss = keras.losses.BinaryCrossentropy()


def data_schema():
    return [*table_schema()[:3], tokens_schema()[0], text_schema()[0]]


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    tokens = np.stack([record["tokens"] for record in records])
    features = {
        "age": x[:, :1],
        "slope": x[:, 1:2],
        "pressure": x[:, 2:3],
        "kind": np.stack([record["label"] for record in records]),
        "code": tokens[:, :1],
        "colour": np.stack([record["text"] for record in records]),
    }
    return features, np.float32(np.stack([record["y"] for record in records]) > 0)


def custom_model():
    feature_space = FeatureSpace(
        features={
            "age": FeatureSpace.float_discretized(num_bins=4),
            "slope": FeatureSpace.float_normalized(),
            "pressure": FeatureSpace.float_rescaled(scale=0.5),
            "kind": FeatureSpace.integer_categorical(num_oov_indices=0),
            "code": FeatureSpace.integer_hashed(num_bins=5),
            "colour": FeatureSpace.string_hashed(num_bins=4),
        },
        crosses=[FeatureSpace.cross(feature_names=("kind", "code"), crossing_dim=8)],
        output_mode="concat",
    )
    line = np.linspace(-2.0, 2.0, 24, dtype=np.float32)[:, None]
    known = {
        "age": line,
        "slope": np.sin(line),
        "pressure": line,
        "kind": np.arange(24)[:, None] % 3,
        "code": np.arange(24)[:, None] % 20,
        "colour": np.array([["red"], ["green"]] * 12),
    }
    feature_space.adapt(tf.data.Dataset.from_tensor_slices(known).batch(8))
    dict_inputs = feature_space.get_inputs()
    encoded_features = feature_space.get_encoded_features()
    x = keras.layers.Dense(8, activation="relu")(encoded_features)
    predictions = keras.layers.Dense(1, activation="sigmoid")(x)
    return keras.Model(inputs=dict_inputs, outputs=predictions)


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    batches = [
        tf.data.Dataset.from_tensor_slices(input_fn(records)).batch(data.batch_size)
        for records in (data.train, data.validation)
    ]
    history = model.fit(
        batches[0], epochs=data.epochs, shuffle=False, validation_data=batches[1], verbose=0
    )
    return history.history, model
