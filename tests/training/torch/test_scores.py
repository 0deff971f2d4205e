"""What the outputs of a PyTorch model are follows from its loss, else from its last layer."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.training.torch.scores import scores_of


def scores(loss, size=3, last=()):
    model = nn.Sequential(nn.Linear(2, size), nn.Sequential(*last))
    definition = ModelDefinition(
        origin=Origin("d", "model.py", 1, "model", "zoo"),
        framework="torch",
        create_model=lambda: model,
        input=RecordInput(list),
        loss=loss,
        create_optimizer=lambda: None,
    )
    return scores_of(model, definition, (size,), torch.device("cpu"))


@pytest.mark.parametrize(
    ("loss", "last", "expected"),
    [
        (nn.CrossEntropyLoss(weight=torch.ones(3), label_smoothing=0.1), [], "logits"),
        (nn.NLLLoss(), [nn.LogSoftmax(1)], "log_probabilities"),
        (functional.cross_entropy, [], "logits"),
        (lambda z, y: functional.nll_loss(z, y.long().flatten()), [], "log_probabilities"),
        (lambda z, y: z.sum(), [nn.Softmax(1)], "probabilities"),
        (None, [nn.Softmax(1)], "probabilities"),
        (nn.MSELoss(), [], None),
        (nn.BCEWithLogitsLoss(), [], None),
        (None, [], None),
    ],
)
def test_several_outputs_are_scores_of_classes(loss, last, expected) -> None:
    assert scores(loss, last=last) == expected


@pytest.mark.parametrize(
    ("loss", "last", "expected"),
    [
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(1)), [], "logits"),
        (nn.BCELoss(), [nn.Sigmoid()], "probabilities"),
        (functional.binary_cross_entropy_with_logits, [], "logits"),
        (nn.MSELoss(), [nn.Sigmoid()], None),
        (nn.CrossEntropyLoss(), [], None),
    ],
)
def test_one_output_is_a_score_only_for_a_binary_loss(loss, last, expected) -> None:
    assert scores(loss, size=1, last=last) == expected
