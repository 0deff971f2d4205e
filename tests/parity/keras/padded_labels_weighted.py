"""Labels per time step, padded, and a loss that divides by their sample weights."""

import keras
from shared import next_tokens, token_net, tokens_schema, train_on_batches

GROUP = "Sequences"
EXPECT = {
    "two workers": "differs: the reported loss weights the mean of each worker's minibatch by its "
    "number of examples; the weights of the model are equal"
}
SAME_WEIGHTS = True

data_schema, input_fn, custom_model = tokens_schema, next_tokens, token_net
loss = keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction="mean_with_sample_weight"
)


def optimizer():
    return keras.optimizers.SGD(0.5)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return train_on_batches(data, model, input_fn)
