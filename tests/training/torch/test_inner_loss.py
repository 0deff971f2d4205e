"""A model that is given labels and returns the loss, as those of Hugging Face do."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import batch_of, definition_of, trainer_of
from torch import nn
from torch.nn import functional

from elasticdl.data.batch import Batch
from elasticdl.errors import DefinitionError


@dataclass
class Output:
    loss: torch.Tensor | None
    scores: torch.Tensor


class Classifier(nn.Module):
    """Returns outputs of one kind."""

    def __init__(self, kind=Output, reduction="mean"):
        super().__init__()
        self.out, self.kind, self.reduction = nn.Linear(4, 3), kind, reduction

    def forward(self, x=None, labels=None):
        scores = self.out(x)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(scores, labels, reduction=self.reduction)
        if self.kind is tuple:
            return (scores,) if loss is None else (loss, scores)
        if self.kind is dict:
            return {"scores": scores} if loss is None else {"loss": loss, "scores": scores}
        return Output(loss, scores)


def trainer_with(model, batch=None):
    definition = definition_of(model, loss=None, loss_within="forward")
    return trainer_of(definition, batch)


@pytest.mark.parametrize("kind", [Output, tuple, dict])
def test_an_inner_loss_trains_like_a_separate_one(kind):
    batch = batch_of(8, features=lambda x: {"x": x})
    mine = trainer_with(lambda: Classifier(kind), batch)
    plain = trainer_of(definition_of(lambda: Classifier().out), batch)

    assert mine.train_steps([batch]).losses == plain.train_steps([batch]).losses
    assert mine.evaluate(batch)["loss"] == plain.evaluate(batch)["loss"]
    outputs = mine.predict(batch.features)
    scores = outputs["scores"] if kind is not tuple else outputs[0]
    assert np.array_equal(scores, plain.predict(batch.features))


def test_sums_of_parts_equal_the_whole():
    batch = batch_of(8, features=lambda x: {"x": x})
    trainer = trainer_with(Classifier, batch)

    contribution, _ = trainer.gradients(batch)

    assert contribution.num_examples == 8
    with pytest.raises(DefinitionError, match="It is a sum"):
        trainer_with(lambda: Classifier(reduction="sum"), batch).gradients(batch)


def test_a_model_without_labels_or_loss_is_refused():
    batch = batch_of(8, features=lambda x: {"x": x})

    with pytest.raises(DefinitionError, match="has no argument labels to compute one from"):
        trainer_with(lambda: nn.Linear(4, 3), batch)
    without = Batch(batch.features, None, 8)
    with pytest.raises(DefinitionError, match="returns no labels"):
        trainer_with(Classifier, batch).train_steps([without])
