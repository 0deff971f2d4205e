"""What the outputs of a PyTorch model are follows from its loss, else from its last layer."""

import pytest
import torch
from tests.training.torch.conftest import definition_of, trainer_of
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


class Activated(nn.Linear):
    def __init__(self, activate, size):
        super().__init__(4, size)
        self.activate = activate

    def forward(self, x):
        return self.activate(super().forward(x))


def warning_of(activate, loss, size=3):
    definition = definition_of(lambda: Activated(activate, size), loss)
    return trainer_of(definition).repeated_activation()


@pytest.mark.parametrize(
    ("activate", "loss", "size", "what"),
    [
        (nn.Softmax(1), nn.CrossEntropyLoss(), 3, "softmax, and the loss, CrossEntropyLoss, "),
        (lambda z: z.softmax(1), functional.cross_entropy, 3, "softmax, and the loss expects"),
        (torch.sigmoid, nn.CrossEntropyLoss(), 3, "sigmoid, and the loss, CrossEntropyLoss, "),
        (
            lambda z: z.sigmoid().squeeze(1),
            lambda z, y: functional.binary_cross_entropy_with_logits(z, y.float()),
            1,
            "sigmoid, and the loss expects",
        ),
    ],
)
def test_a_softmax_before_a_loss_of_logits_is_found(activate, loss, size, what) -> None:
    assert f"model.py:1: the model's outputs are those of a {what}" in warning_of(
        activate, loss, size
    )


@pytest.mark.parametrize(
    ("activate", "loss", "size"),
    [
        (lambda z: z, nn.CrossEntropyLoss(), 3),
        (lambda z: z.log_softmax(1), nn.NLLLoss(), 3),
        (lambda z: z.softmax(1) * 5, nn.CrossEntropyLoss(), 3),
        (lambda z: z.softmax(1), lambda p, y: functional.nll_loss(p.log(), y), 3),
        (
            lambda z: z.sigmoid().squeeze(1),
            lambda p, y: functional.binary_cross_entropy(p, (y > 0).float()),
            1,
        ),
        (torch.sigmoid, lambda p, y: functional.mse_loss(p, functional.one_hot(y, 3).float()), 3),
    ],
)
def test_outputs_that_fit_the_loss_have_no_warning(activate, loss, size) -> None:
    assert not warning_of(activate, loss, size)


def test_a_softmax_outside_training_has_no_warning() -> None:
    class Net(nn.Linear):
        def forward(self, x):
            scores = super().forward(x)
            return scores if self.training else scores.softmax(1)

    definition = definition_of(lambda: Net(4, 3), nn.CrossEntropyLoss())
    assert not trainer_of(definition).repeated_activation()
