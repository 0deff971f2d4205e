"""Labels per time step, padded to the longest of the batch, with sample weights of 0."""

import keras
from shared import next_tokens, token_net, tokens_schema, train_on_batches

GROUP = "Sequences"
EXPECT = {
    "two workers": "differs: Keras divides by the number of time steps, padding included, and each "
    "worker pads its own minibatch; a warning in the log says so. "
    '`reduction="mean_with_sample_weight"`, a mask or a fixed length gives equal numbers'
}

data_schema, input_fn, custom_model = tokens_schema, next_tokens, token_net
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer():
    return keras.optimizers.SGD(0.5)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return train_on_batches(data, model, input_fn)
