"""Audio: MelSpectrogram and a trainable STFTSpectrogram, followed by a convolution."""

import keras
from keras import layers
from shared import _column, fit, image_schema

GROUP = "Preprocessing layers"
EXPECT = "equal within 1e-4: the logarithm of a small magnitude multiplies its rounding error"

data_schema = image_schema
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def input_fn(records):
    """Return (a wave, label)."""
    return _column(records, "image").reshape(-1, 128), _column(records, "label")[:, 0]


def custom_model():
    inputs = keras.Input((128,))
    mel = layers.MelSpectrogram(
        fft_length=32, sequence_stride=16, num_mel_bins=6, sampling_rate=1000, min_freq=20
    )(inputs)
    waves = layers.Reshape((128, 1))(inputs)
    stft = layers.STFTSpectrogram(
        mode="log", frame_length=32, frame_step=16, fft_length=32, trainable=True
    )(waves)
    x = layers.Conv1D(4, 3, activation="relu")(stft)
    mel = layers.Rescaling(0.01)(layers.GlobalAveragePooling1D()(mel))
    x = layers.Concatenate()([layers.GlobalAveragePooling1D()(x), mel])
    return keras.Model(inputs, layers.Dense(3)(x))


def optimizer():
    return keras.optimizers.Adam(0.003)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
