"""Video classification (Keras example): features of frames, and a mask as an input of a GRU."""

import keras
import numpy as np
from keras import layers
from shared import fit, named

GROUP = "Sequences"

MAX_SEQ_LENGTH, NUM_FEATURES = 6, 3
TAGS = ["CricketShot", "PlayingCello", "Punch"]
label_processor = layers.StringLookup(num_oov_indices=0, vocabulary=np.unique(TAGS))

loss = "sparse_categorical_crossentropy"


def data_schema():
    return [
        {"name": "series", "shape": [6, 3], "dtype": "float32"},
        {"name": "tokens", "shape": [10], "dtype": "int64"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def prepare_all_videos(records):
    labels = np.array([[TAGS[record["label"][0]]] for record in records])
    labels = keras.ops.convert_to_numpy(label_processor(labels))
    frame_masks = np.zeros(shape=(len(records), MAX_SEQ_LENGTH), dtype="bool")
    frame_features = np.zeros((len(records), MAX_SEQ_LENGTH, NUM_FEATURES), dtype="float32")
    for idx, record in enumerate(records):
        length = min(MAX_SEQ_LENGTH, np.count_nonzero(record["tokens"]) - 2)
        frame_features[idx, :length] = record["series"][:length]
        frame_masks[idx, :length] = 1  # 1 = not masked, 0 = masked
    return (frame_features, frame_masks), labels


def input_fn(records):
    (frame_features, frame_masks), labels = prepare_all_videos(records)
    return [frame_features, frame_masks], labels


def custom_model():
    class_vocab = label_processor.get_vocabulary()
    frame_features_input = keras.Input((MAX_SEQ_LENGTH, NUM_FEATURES))
    mask_input = keras.Input((MAX_SEQ_LENGTH,), dtype="bool")
    x = layers.GRU(16, return_sequences=True)(frame_features_input, mask=mask_input)
    x = layers.GRU(8)(x)
    x = layers.Dense(8, activation="relu")(x)
    output = layers.Dense(len(class_vocab), activation="softmax")(x)
    return keras.Model([frame_features_input, mask_input], output)


def optimizer():
    return keras.optimizers.Adam()


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(loss=loss, optimizer=optimizer(), metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
