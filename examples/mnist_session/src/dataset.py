"""Where examples come from: folders of pictures, each with a table of labels."""

import csv

import tensorflow as tf

from abstractions import DataLoaderBase


class Pictures(DataLoaderBase):
    """Yields (picture, label, weight), and (picture, label, name) of the test data."""

    def create_training_generator(self):
        names, labels = self._table("train")
        examples = tf.data.Dataset.zip(
            (
                self._pictures("train", names),
                tf.data.Dataset.from_tensor_slices(labels),
                tf.data.Dataset.from_tensor_slices(tf.ones(len(names))),
            )
        ).cache()
        if self.shuffle:
            examples = examples.shuffle(len(names))
        return examples, len(names)

    def create_validation_generator(self):
        names, labels = self._table("validation")
        examples = tf.data.Dataset.zip(
            (
                self._pictures("validation", names),
                tf.data.Dataset.from_tensor_slices(labels),
                tf.data.Dataset.from_tensor_slices(tf.ones(len(names))),
            )
        )
        return examples, len(names)

    def create_test_generator(self):
        names, labels = self._table("test")
        examples = tf.data.Dataset.zip(
            (
                self._pictures("test", names),
                tf.data.Dataset.from_tensor_slices(labels),
                tf.data.Dataset.from_tensor_slices(names),
            )
        )
        return examples, len(names)

    def get_validation_index(self):
        return self._table("validation")[0]

    def _table(self, split):
        with (self.data_dir / split / "labels.csv").open(newline="") as table:
            rows = list(csv.DictReader(table))
        return [row["picture"] for row in rows], [int(row["label"]) for row in rows]

    def _pictures(self, split, names):
        paths = [str(self.data_dir / split / name) for name in names]
        return tf.data.Dataset.from_tensor_slices(paths).map(_read)

    def _set_defaults(self):
        self.shuffle = True

    def _load_params(self, config):
        self.shuffle = config.data_loader.shuffle


def _read(path):
    picture = tf.io.decode_png(tf.io.read_file(path), channels=1)
    return tf.ensure_shape(picture, (8, 8, 1))
