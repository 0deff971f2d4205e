"""What PyTorch wrote: layers and tensors without being asked, the rest where it is trusted."""

import numpy as np
import pytest
import torch
from tests.saved_models.conftest import sequential
from torch import nn

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.errors import DefinitionError, ModelFileError
from elasticdl.saved_models import torch as loader
from elasticdl.saved_models.file_format import identify, sha256_of
from elasticdl.saved_models.loading import load
from elasticdl.saved_models.trust import Trust


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = sequential()

    def forward(self, x):
        return self.layers(x)


def trained(model) -> list[float]:
    """Return the losses of a few steps with the trainer of PyTorch."""
    from elasticdl.training.torch import TorchTrainer

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 32)
    features = np.eye(4, dtype="float32")[labels] + rng.normal(0, 0.1, (32, 4)).astype("float32")
    definition = ModelDefinition(
        origin=Origin("ibmfl_spec", "model.yml", 1, "model.yml", "."),
        framework="torch",
        create_model=lambda: model,
        input=RecordInput(lambda records: records),
        loss=loader.loss("nn.CrossEntropyLoss", where="model.yml"),
        create_optimizer=lambda: (
            loader.optimizer("optim.Adam", {"lr": 0.05}, where="model.yml").create
        ),
    )
    batch = Batch(features, labels, 32)
    trainer = TorchTrainer(definition, batch, minibatch_size=32)
    return [float(trainer.train_steps([batch]).losses[0]) for _ in range(20)]


def test_a_whole_sequential_is_loaded_without_trust(torch_whole) -> None:
    losses = trained(load(identify(torch_whole)))

    assert losses[-1] < losses[0] / 2


def test_a_transformer_is_loaded_without_trust(tmp_path) -> None:
    model = nn.Sequential(
        nn.Embedding(9, 4), nn.TransformerEncoderLayer(4, 2, 8), nn.LSTM(4, 3, bidirectional=True)
    )
    torch.save(model, tmp_path / "model.pt")

    assert isinstance(load(identify(tmp_path / "model.pt"))[1], nn.TransformerEncoderLayer)


@pytest.mark.parametrize("fixture", ["torch_old", "torch_script"])
def test_a_trusted_program_is_loaded(request, fixture, quiet) -> None:
    path = request.getfixturevalue(fixture)

    model = load(identify(path), trust=Trust(allow_pickle=True, sha256=sha256_of(path)))

    losses = trained(model)
    assert losses[-1] < losses[0] / 2


def test_an_exported_program_is_loaded(torch_exported, quiet) -> None:
    losses = trained(load(identify(torch_exported)))

    assert losses[-1] < losses[0] / 2


def test_a_state_dict_is_loaded_into_a_declared_class(tmp_path) -> None:
    model = Net()
    torch.save(model.state_dict(), tmp_path / "state.pt")
    torch.save({"epoch": 3, "state_dict": model.state_dict()}, tmp_path / "checkpoint.pt")

    for name in ("state.pt", "checkpoint.pt"):
        loaded = load(identify(tmp_path / name), custom_objects={"Net": Net})

        assert isinstance(loaded, Net)
        for mine, theirs in zip(loaded.parameters(), model.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_a_state_dict_may_be_loaded_into_the_model_of_a_function(torch_state) -> None:
    assert isinstance(
        load(identify(torch_state), custom_objects={"make": sequential}), nn.Sequential
    )


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ({}, "Expected one class or function that creates the model; none is declared"),
        ({"A": Net, "B": Net}, "declared are A, B"),
        ({"make": lambda: 1}, "returned a int"),
        ({"Net": lambda: nn.Linear(2, 2)}, "holds weights that do not fit the model of Net()"),
    ],
)
def test_a_state_dict_needs_its_model(torch_state, objects, said) -> None:
    with pytest.raises(ModelFileError) as raised:
        load(identify(torch_state), custom_objects=objects)

    assert said in str(raised.value)


def test_a_dict_of_other_objects_is_not_a_state_dict(tmp_path) -> None:
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "c.pt")

    with pytest.raises(ModelFileError, match="a dict with epoch, lr, which are not tensors"):
        load(identify(tmp_path / "c.pt"), custom_objects={"Net": Net})


def test_a_custom_class_must_be_declared_or_trusted(tmp_path) -> None:
    path = tmp_path / "net.pt"
    torch.save(Net(), path)

    with pytest.raises(ModelFileError, match=r"test_torch\.Net") as raised:
        load(identify(path))
    assert "custom_objects" in str(raised.value)
    assert isinstance(load(identify(path), custom_objects={"Net": Net}), Net)
    trusted = Trust(allow_pickle=True, sha256=sha256_of(path))
    assert type(load(identify(path), trust=trusted)).__name__ == "Net"


def test_a_file_that_is_not_a_model_is_an_error(tmp_path) -> None:
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    torch.save(nn.Flatten(), tmp_path / "flatten.pt")

    with pytest.raises(ModelFileError, match="holds a Tensor"):
        load(identify(tmp_path / "tensor.pt"))
    with pytest.raises(ModelFileError, match="no parameter that can be trained"):
        load(identify(tmp_path / "flatten.pt"))


def test_an_internally_damaged_file_is_an_error(torch_whole, tmp_path) -> None:
    content = bytearray(torch_whole.read_bytes())
    at = content.index(b"Sequential")
    content[at : at + 10] = b"Sequentiel"
    (tmp_path / "model.pt").write_bytes(content)

    with pytest.raises(ModelFileError):
        load(identify(tmp_path / "model.pt"))


# --- names ---------------------------------------------------------------------------------------


def test_an_optimizer_is_found_by_its_name() -> None:
    found = loader.optimizer("optim.SGD", {"lr": 0.5, "momentum": 0.9}, where="model.yml:4")

    made = found.create([nn.Parameter(torch.zeros(1))], None)
    assert isinstance(made, torch.optim.SGD)
    assert made.param_groups[0]["lr"] == 0.5
    assert found.description == "SGD, learning rate 0.5 (as given)"


def test_an_optimizer_reports_its_default_learning_rate() -> None:
    found = loader.optimizer("optim.Adadelta", where="model.yml:4")

    assert found.description == "Adadelta, learning rate 1.0 (PyTorch's default)"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("optim.Adm", "Did you mean 'optim.Adam'?"),
        ("optim.adam", "Did you mean 'optim.Adam'?"),
        ("Adam", "expected a name like optim.Adam"),
        ("optim.Optimizer", "is not an optimizer"),
        ("optim.lr_scheduler", "is not an optimizer"),
        ("nn.Linear", "is not an optimizer"),
        ("optim.Adam()", "is not an optimizer"),
        ("optim.__class__", "is not an optimizer"),
        ("__import__('os').system('true')", "is not an optimizer"),
        (3, "is not an optimizer"),
    ],
)
def test_an_invalid_optimizer_is_an_error_and_is_not_evaluated(name, said) -> None:
    with pytest.raises(DefinitionError, match="^model.yml:4: ") as raised:
        loader.optimizer(name, where="model.yml:4")

    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"learning_rate": 0.1}, "takes no 'learning_rate'"),
        ({"momentun": 0.1}, "Did you mean momentum?"),
        ({"lr": -1}, "cannot be created"),
    ],
)
def test_an_optimizer_with_other_arguments_is_an_error(arguments, said) -> None:
    with pytest.raises(DefinitionError, match="^model.yml:4: ") as raised:
        loader.optimizer("optim.SGD", arguments, where="model.yml:4")

    assert said in str(raised.value)


def test_a_loss_is_found_by_its_name() -> None:
    loss = loader.loss("nn.NLLLoss", where="model.yml:4")

    assert float(loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([1]))) == 2.0


@pytest.mark.parametrize("name", ["nn.NLLoss", "nn.Linear", "nn.functional", "optim.Adam", "nn"])
def test_an_invalid_loss_is_an_error(name) -> None:
    with pytest.raises(DefinitionError, match="is not a loss of PyTorch"):
        loader.loss(name, where="model.yml:4")


def test_an_exported_program_can_be_exported_again(tmp_path, quiet) -> None:
    from elasticdl.training.torch.export import export

    batch = torch.export.Dim("batch")
    program = torch.export.export(sequential(), (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "first.pt2")
    model = load(identify(tmp_path / "first.pt2"))
    with torch.no_grad():
        next(model.parameters()).add_(1.0)

    assert export(model, ((torch.zeros(2, 4),), {}), tmp_path) == ["model.pt2"]

    again = load(identify(tmp_path / "model.pt2"))
    inputs = torch.randn(5, 4)
    np.testing.assert_array_equal(again(inputs).detach(), model(inputs).detach())
