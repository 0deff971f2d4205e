"""Multi-label text classification (Keras example): terms by a multi-hot StringLookup, tf-idf."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from shared import named, text_schema

from elasticdl import Mode

GROUP = "Preprocessing layers"

data_schema = text_schema
loss = "binary_crossentropy"

TERMS = [["red", "green"], ["blue"], ["small", "old", "new"], ["red", "small"], ["round", "red"]]
SUMMARIES = [
    "red green blue",
    "small large old red",
    "new round flat loud",
    "red old",
    "a loud one",
]

lookup = layers.StringLookup(output_mode="multi_hot")
lookup.adapt(tf.ragged.constant(TERMS))

text_vectorizer = layers.TextVectorization(max_tokens=30, ngrams=2, output_mode="tf_idf")
text_vectorizer.adapt(tf.data.Dataset.from_tensor_slices(SUMMARIES).batch(2))


def example_of(text):
    """Return (its summary as tf-idf, its terms as zeros and ones)."""
    words = tf.strings.split(text)
    return text_vectorizer(text), lookup(words[::2])


def vectorized(text, label):
    return text_vectorizer(text), label


def feed(dataset, mode):
    def parse(record):
        return tf.io.parse_single_example(record, {"text": tf.io.FixedLenFeature([], tf.string)})

    dataset = dataset.map(lambda record: parse(record)["text"])
    if mode == Mode.PREDICTION:
        return dataset.map(text_vectorizer)
    auto = tf.data.AUTOTUNE
    return dataset.map(example_of, num_parallel_calls=auto).prefetch(auto)


def custom_model():
    return keras.Sequential(
        [
            layers.Dense(16, activation="relu"),
            layers.Dense(8, activation="relu"),
            layers.Dense(lookup.vocabulary_size(), activation="sigmoid"),
        ]
    )


def optimizer():
    return keras.optimizers.Adam(0.01)


def eval_metrics_fn():
    return {"binary_accuracy": keras.metrics.BinaryAccuracy()}


def plain(data):
    def make_dataset(records):
        texts = np.array([record["text"][0] for record in records], object)
        terms = tf.ragged.constant([text.split()[::2] for text in texts])
        label_binarized = lookup(terms).numpy()
        dataset = tf.data.Dataset.from_tensor_slices((texts, label_binarized))
        texts_as_numbers = dataset.batch(data.batch_size).map(vectorized)
        return texts_as_numbers.prefetch(tf.data.AUTOTUNE)

    model = custom_model()
    model.compile(loss=loss, optimizer=optimizer(), metrics=named(eval_metrics_fn()))
    history = model.fit(
        make_dataset(data.train),
        validation_data=make_dataset(data.validation),
        epochs=data.epochs,
        shuffle=False,
        verbose=0,
    )
    return history.history, model
