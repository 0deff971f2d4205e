"""From a picture to what the model takes, and from examples to batches."""

import math

import tensorflow as tf

from abstractions import PreprocessorBase


class Scaled(PreprocessorBase):
    """Brightness from 0 to 1."""

    def image_preprocess(self, image):
        return tf.cast(image, tf.float32) / self.brightest

    def add_image_preprocess(self, generator):
        return generator.map(lambda picture, *rest: (self.image_preprocess(picture), *rest))

    def add_label_preprocess(self, generator):
        return generator

    def batchify(self, generator, n_data_points):
        batches = math.ceil(n_data_points / self.batch_size)
        return generator.batch(self.batch_size).repeat(), batches

    def _set_defaults(self):
        self.brightest = 255.0
        self.batch_size = 32

    def _load_params(self, config):
        self.brightest = config.preprocessor.brightest
        self.batch_size = config.batch_size
