"""A model file of PyTorch is known as one, and what belongs to its model is read its way."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
import torch

from elasticdl.data.batch import Batch
from elasticdl.definition import Mode
from elasticdl.errors import DefinitionError, UsageError

FILE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, units=3):
        super().__init__()
        self.out = nn.Linear(2, units)

    def forward(self, x):
        return self.out(x)

def custom_model(units=3):
    return Net(units)

def input_fn(records):
    return records

def loss(labels, predictions):
    # Asymmetric: in the wrong order its minimum is elsewhere.
    return ((predictions - 2.0 * labels) ** 2).mean()

def optimizer(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr)

def eval_metrics_fn(predictions, labels):
    return {"error": (predictions - labels).abs().mean()}
"""
MODEL = """
class Net(nn.Module):
    def __init__(self, units=3):
        super().__init__()
        self.out = nn.Linear(2, units)

    def forward(self, x):
        return self.out(x)
"""
# A class is a Keras model by its ancestors' names, so this is as good as Keras.
BOTH = FILE.replace("import torch\n", "import torch\nfrom fake_keras import Model\n", 1)
MAKER = "def custom_model(units=3)"
# Good for either framework as far as a definition goes.
OPTIMIZER = "def optimizer(lr=0.1):\n    return torch.optim.Adam"


def parameters():
    return [torch.nn.Parameter(torch.ones(2))]


def made_by(definition):
    return definition.create_optimizer()(parameters(), None)


@pytest.mark.parametrize(
    "line",
    [
        "from torch.optim import lr_scheduler",
        "from torch import optim as gradient_clipping",
        "from torch.optim import swa_utils as averaged_model",
    ],
)
def test_an_imported_module_is_not_a_function_of_the_file(define, line) -> None:
    definition = define(FILE.replace("import torch\n", f"import torch\n{line}\n", 1))

    assert definition.create_lr_schedulers is None
    assert definition.gradient_clipping is None
    assert definition.create_average is None


# --- whose model it is ---------------------------------------------------------------------------


def test_a_file_that_imports_only_torch_is_a_torch_file(define) -> None:
    definition = define(FILE, params={"units": 5, "lr": 0.5})

    assert (definition.framework, definition.origin.dialect) == ("torch", "elasticdl_module")
    assert not definition.labels_as_numpy
    assert definition.create_model().out.out_features == 5
    assert made_by(definition).param_groups[0]["lr"] == 0.5
    assert definition.loss(10.0 * torch.ones(1), torch.ones(1)) == 64
    assert definition.create_metrics(Mode.EVALUATION).scalars(3 * torch.ones(1), 1) == {"error": 2}


@pytest.mark.parametrize("model_def", ["m.custom_model", "m.Net"])
def test_its_function_or_class_may_be_named(define, model_def) -> None:
    definition = define(FILE, model_def, params={"units": 4})

    assert definition.framework == "torch"
    assert definition.create_model().out.out_features == 4


def test_a_model_made_at_import_is_recreated_for_each_run(define) -> None:
    text = FILE.replace("def custom_model(units=3):\n    return Net(units)", "model = Net()")

    definition = define(text)

    assert definition.framework == "torch"
    assert definition.create_model() is not definition.create_model()
    assert isinstance(made_by(definition), torch.optim.SGD)


def test_a_class_of_another_file_of_the_zoo_counts(define, write) -> None:
    write("from torch import nn\n" + MODEL, "nets.py")
    text = FILE.replace("import torch\nfrom torch import nn\n", "from nets import Net\n")
    text = text.replace(MODEL, "").replace("return torch.optim", "import torch; return torch.optim")

    assert define(text).framework == "torch"


def test_a_keras_file_stays_keras_when_torch_is_loaded(define) -> None:
    text = (
        "from fake_keras import Model\n\ndef custom_model" + FILE.partition("def custom_model")[2]
    )
    text = text.replace("Net(units)", "Model(units=units)").partition("def optimizer")[0]

    definition = define(text + OPTIMIZER)

    assert definition.framework == "keras"
    assert definition.labels_as_numpy


@pytest.mark.parametrize(
    ("annotation", "framework"),
    [
        ("nn.Module", "torch"),
        ("'nn.Module'", "torch"),
        ("torch.nn.Module", "torch"),
        ("Net", "torch"),
        ("'hidden.Module'", "torch"),
        ("Model", "keras"),
        ("'hidden.Model'", "keras"),
    ],
)
def test_an_annotation_decides_if_a_file_imports_both(define, annotation, framework) -> None:
    text = BOTH.replace(f"{MAKER}:", f"{MAKER} -> {annotation}:").partition("def optimizer")[0]

    assert define(text + OPTIMIZER).framework == framework


def test_the_class_of_the_model_decides_if_a_file_imports_both(define) -> None:
    assert define(BOTH, "m.Net").framework == "torch"


def test_an_ambiguous_file_that_imports_both_is_refused(refused) -> None:
    message = refused(BOTH, DefinitionError)

    assert "m.py:14: the file imports PyTorch and Keras or TensorFlow" in message
    assert "def custom_model() -> torch.nn.Module, or -> keras.Model" in message


def test_a_model_of_an_unexpected_framework_is_reported(define) -> None:
    hidden = FILE.replace("import torch\nfrom torch import nn\n", "").replace(MODEL, "")
    text = hidden.replace("return Net(units)", "import torch; return torch.nn.Linear(2, units)")
    definition = define(text.partition("def optimizer")[0] + OPTIMIZER)

    with pytest.raises(
        DefinitionError, match=r"created a Linear, which is not a model of Keras, .*\n"
    ):
        definition.create_model()


def test_torch_is_not_imported_for_a_file_that_does_not_import_it(run_python, tmp_path) -> None:
    (tmp_path / "m.py").write_text(
        "def custom_model(): ...\ndef input_fn(records): ...\n"
        "def loss(labels, outputs): ...\ndef optimizer(): ...\n"
    )
    listing = run_python(
        "import sys\n"
        "from elasticdl.job import ModelReference\n"
        "from elasticdl.zoo import define\n"
        f"framework = define(ModelReference({str(tmp_path)!r}, 'm')).framework\n"
        "print(framework, 'torch' in sys.modules)"
    )

    assert listing.stdout.split() == ["keras", "False"]


# --- optimizers ----------------------------------------------------------------------------------


def with_optimizer(text: str) -> str:
    return FILE.partition("def optimizer")[0] + "import functools\n" + text


@pytest.mark.parametrize(
    "text",
    [
        "def optimizer(params, /, lr=0.5): return torch.optim.Adam(params, lr)",
        "def optimizer(*, lr=0.5, parameters): return torch.optim.Adam(parameters, lr)",
        "optimizer = functools.partial(torch.optim.Adam, lr=0.5)",
        "def optimizer(lr=0.5): return functools.partial(torch.optim.Adam, lr=lr)",
        "def optimizer(): return lambda p: torch.optim.Adam(p, 0.5)",
    ],
)
def test_an_optimizer_takes_parameters_in_several_forms(define, text) -> None:
    definition = define(with_optimizer(text))
    given = parameters()

    made = definition.create_optimizer()(given, None)

    assert isinstance(made, torch.optim.Adam)
    assert made.param_groups[0]["lr"] == 0.5
    assert made.param_groups[0]["params"][0] is given[0]


BY_NAME = """
def optimizer(named_parameters):
    return torch.optim.SGD([{"params": [p], "lr": len(name)} for name, p in named_parameters])
"""
BY_LAYER = """
def optimizer(model, parameters, lr=2):
    return torch.optim.SGD([{"params": [model.weight]}, {"params": parameters[1:], "lr": 4}], lr)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BY_NAME, [6, 4]),
        (BY_LAYER, [2, 4]),
        ("def optimizer(net, /): return torch.optim.SGD(net.parameters(), 3)", [3]),
    ],
)
def test_an_optimizer_may_make_groups_by_name_or_layer(define, text, expected) -> None:
    make = define(with_optimizer(text)).create_optimizer()
    model = torch.nn.Linear(2, 1)
    others = [torch.nn.Parameter(torch.zeros_like(p)) for p in model.parameters()]

    for given in (list(model.parameters()), others):
        groups = make(given, model).param_groups

        assert [group["lr"] for group in groups] == expected
        assert [id(p) for group in groups for p in group["params"]] == [id(p) for p in given]


def test_a_model_that_cannot_be_copied_is_reported(define) -> None:
    make = define(
        with_optimizer("def optimizer(model): return torch.optim.SGD(model.parameters(), 1)")
    ).create_optimizer()
    model = torch.nn.Linear(2, 1)
    model.lock = threading.Lock()
    make(list(model.parameters()), model)

    with pytest.raises(DefinitionError, match=r"optimizer is tested on a copy .*cannot be copied"):
        make([torch.nn.Parameter(torch.zeros_like(p)) for p in model.parameters()], model)


def test_a_param_may_be_called_model(define) -> None:
    text = "def optimizer(model): return functools.partial(torch.optim.SGD, lr=len(model))"

    assert made_by(define(with_optimizer(text), params={"model": "abc"})).param_groups[0]["lr"] == 3


@pytest.mark.parametrize(
    "text",
    [
        "optimizer = torch.optim.Adam",
        "optimizer = functools.partial(torch.optim.Adam, lr=0.5)",
        "def optimizer(parameters, lr): return torch.optim.Adam(parameters, lr)",
        "def optimizer(lr): return functools.partial(torch.optim.Adam, lr=lr)",
    ],
)
def test_params_reach_an_optimizer(define, text) -> None:
    definition = define(with_optimizer(text), params={"lr": 0.25})

    assert made_by(definition).param_groups[0]["lr"] == 0.25


def test_missing_and_unknown_params_of_an_optimizer_are_reported(refused) -> None:
    text = with_optimizer("def optimizer(parameters, lr): ...")

    assert "lr missing" in refused(text, UsageError)
    assert "has a parameter 'parameters'" in refused(
        text, UsageError, params={"lr": 1, "parameters": 2}
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def optimizer(modle): ...", "optimizer(modle) has unknown arguments: modle"),
        ("optimizer = 'adam'", "optimizer is a str, which has no parameters"),
        ("optimizer = torch.optim.Adam(Net().parameters())", "optimizer is an Adam, which has"),
    ],
)
def test_an_optimizer_without_the_models_parameters_is_refused(refused, text, problem) -> None:
    message = refused(with_optimizer(text), DefinitionError)

    assert problem in message
    assert "Accept the model's parameters: def optimizer(parameters, lr=0.001)." in message


def test_an_optimizer_created_without_the_parameters_is_refused(define) -> None:
    definition = define(
        with_optimizer("def optimizer(): return torch.optim.Adam(Net().parameters())")
    )

    with pytest.raises(
        DefinitionError, match=r"optimizer\(\) returned an Adam, but did not receive"
    ):
        definition.create_optimizer()


# --- losses and metrics --------------------------------------------------------------------------


LOSS_MODULE = """
class Mine(nn.Module):
    def forward(self, labels, outputs):
        return nn.functional.cross_entropy(outputs, labels)

loss = Mine()
"""


def with_loss(text: str) -> str:
    before, _, rest = FILE.partition("def loss")
    return f"{before}{text}\n\ndef optimizer{rest.partition('def optimizer')[2]}"


@pytest.mark.parametrize(
    "text",
    [
        "loss = nn.CrossEntropyLoss()",
        "loss = nn.functional.cross_entropy",
        "def loss(target, logits): return nn.functional.cross_entropy(logits, target)",
        "def loss(input, target): return nn.functional.cross_entropy(input, target)",
        LOSS_MODULE,
    ],
)
def test_a_loss_gets_outputs_and_labels_in_its_order(define, text) -> None:
    outputs, labels = torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 1])

    loss = define(with_loss(text)).loss(outputs, labels)

    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(outputs, labels))


@pytest.mark.parametrize("arguments", ["labels, outputs", "outputs, labels"])
def test_the_hooks_of_a_loss_module_run(define, arguments) -> None:
    outputs, labels = torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 1])
    hook = "loss.register_forward_hook(lambda module, given, value: 3.0 * value)"
    text = f"{LOSS_MODULE}\n{hook}".replace("labels, outputs", arguments)

    loss = define(with_loss(text)).loss(outputs, labels)

    expected = 3.0 * torch.nn.functional.cross_entropy(outputs, labels)
    torch.testing.assert_close(loss, expected)


def test_a_loss_of_pytorch_may_have_its_options_set_by_partial(define) -> None:
    outputs, labels = torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 1])
    text = "from functools import partial\n\n"
    text += "loss = partial(nn.functional.cross_entropy, label_smoothing=0.5)"

    loss = define(with_loss(text)).loss(outputs, labels)

    expected = torch.nn.functional.cross_entropy(outputs, labels, label_smoothing=0.5)
    torch.testing.assert_close(loss, expected)


def test_a_partial_that_sets_the_labels_is_refused(refused) -> None:
    text = "from functools import partial\n\n"
    text += "loss = partial(nn.functional.cross_entropy, target=torch.tensor([1, 1]))"

    assert "loss" in refused(with_loss(text), DefinitionError)


@pytest.mark.parametrize(
    ("loss", "takes", "call"),
    [
        (
            "nn.MarginRankingLoss()",
            "MarginRankingLoss, which takes input1, input2, target,",
            "outputs[0], outputs[1], labels",
        ),
        (
            "nn.functional.gaussian_nll_loss",
            "gaussian_nll_loss, which takes input, target, var,",
            "outputs[0], labels, outputs[1]",
        ),
        (
            "partial(nn.functional.triplet_margin_loss, margin=0.5)",
            "triplet_margin_loss, which takes anchor, positive, negative,",
            "outputs[0], outputs[1], outputs[2]",
        ),
    ],
)
def test_a_loss_of_more_than_outputs_and_labels_is_refused_with_the_function_to_write(
    refused, loss, takes, call
) -> None:
    text = f"from functools import partial\nloss = {loss}"

    message = refused(with_loss(text), DefinitionError)

    assert takes in message
    assert "Let the model return a tuple of outputs, keep this" in message
    assert "under another name (criterion = ...)" in message
    assert message.endswith(f"def loss(outputs, labels): return criterion({call})")


@pytest.mark.parametrize("loss", ["nn.CTCLoss()", "nn.functional.ctc_loss"])
def test_the_function_to_write_for_a_ctc_loss_works_as_it_is(define, refused, loss) -> None:
    message = refused(with_loss(f"loss = {loss}"), DefinitionError)
    function = re.search(r"def loss.* return criterion\(.*?\)(?= \(for log)", message)
    assert function is not None
    assert "If labels are padded, the last argument must have their real lengths" in message

    definition = define(with_loss(f"criterion = {loss}\n{function[0]}"))

    outputs = torch.randn(2, 7, 5).log_softmax(-1)
    labels = torch.tensor([[1, 2, 3], [4, 1, 2]])
    expected = torch.nn.CTCLoss()(outputs.transpose(0, 1), labels, [7, 7], [3, 3])
    torch.testing.assert_close(definition.loss(outputs, labels), expected)


@pytest.mark.parametrize("argument", ["outputs", "labels", ""])
def test_a_loss_that_lacks_an_argument_is_not_advised_to_set_the_dialect(refused, argument) -> None:
    message = refused(with_loss(f"def loss({argument}): return 0"), DefinitionError)

    assert "it is called as loss(outputs, labels).\n" in message
    assert message.endswith("\n  Add the missing argument.")


def test_an_object_that_is_not_a_loss_is_refused(refused) -> None:
    assert "or a loss of PyTorch such as" in refused(with_loss("loss = 'mse'"), DefinitionError)


# --- classes that are not called -----------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["loss = nn.CrossEntropyLoss", "from torch.nn import CrossEntropyLoss as loss"]
)
def test_the_class_of_a_loss_is_refused_with_the_line_of_the_file(refused, text) -> None:
    file = with_loss(text)
    line = file.splitlines().index(text) + 1
    message = refused(file, DefinitionError)

    assert f"m.py:{line}: loss is the class CrossEntropyLoss, not a loss." in message
    assert "Call it: loss = torch.nn.CrossEntropyLoss()" in message


def test_the_class_of_a_scheduler_is_refused_with_the_function_to_write(refused) -> None:
    text = "lr_scheduler = torch.optim.lr_scheduler.StepLR"
    file = f"{FILE}{text}\n"
    line = file.splitlines().index(text) + 1
    message = refused(file, UsageError)

    assert f"m.py:{line}: lr_scheduler is the class StepLR, which needs step_size." in message
    assert "def lr_scheduler(optimizer): return StepLR(optimizer, step_size=...)" in message


def test_functions_that_return_a_class_are_refused(define) -> None:
    optimizer = define(with_optimizer("def optimizer(parameters): return torch.optim.Adam"))
    model = define(FILE.replace("return Net(units)", "return Net"))

    with pytest.raises(
        DefinitionError, match=r"returned the class Adam.*\n.*\n.*return Adam\(para"
    ):
        made_by(optimizer)
    with pytest.raises(DefinitionError, match="returned the class Net, not a model"):
        model.create_model()


@pytest.mark.parametrize("metric", ["'accuracy'", "Metric()"])
def test_a_keras_metric_is_refused(define, metric) -> None:
    text = BOTH.replace(f"{MAKER}:", f"{MAKER} -> nn.Module:").partition("def eval_metrics_fn")[0]
    definition = define(
        f"{text}from fake_keras import Metric\ndef eval_metrics_fn(): return {{'a': {metric}}}\n"
    )

    with pytest.raises(DefinitionError, match="metric 'a' of eval_metrics_fn is a Keras metric"):
        definition.create_metrics(Mode.EVALUATION)


# --- together ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["labels, predictions", "predictions, labels"])
def test_a_definition_trains_to_the_minimum_of_its_loss(define, arguments) -> None:
    from elasticdl.training.torch import TorchTrainer

    definition = define(
        FILE.replace("def loss(labels, predictions)", f"def loss({arguments})"),
        params={"units": 1, "lr": 0.3},
    )
    features = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    batch = Batch({"anything": features}, features.sum(axis=1, keepdims=True), 64)
    trainer = TorchTrainer(definition, batch, minibatch_size=64, seed=1)

    trainer.train_steps([batch] * 60)

    np.testing.assert_allclose(trainer.state()["model/out.weight"], [[2.0, 2.0]], atol=1e-2)


# --- updates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("gradient_clipping = 2", ("norm", 2.0)),
        ("gradient_clipping = {'norm': 0.5}", ("norm", 0.5)),
        ("gradient_clipping = {'value': 0.5}", ("value", 0.5)),
        ("import numpy as np\ngradient_clipping = np.float32(0.5)", ("norm", 0.5)),
    ],
)
def test_gradient_clipping_has_several_forms(define, code, expected):
    clipping = define(f"{FILE}\n{code}\n").gradient_clipping

    assert (clipping.by, clipping.limit) == expected


def test_update_functions_get_params(define):
    definition = define(
        FILE + "\ndef gradient_clipping(parameters, limit=1.0):\n    return parameters, limit\n"
        "\ndef lr_scheduler(optimizer, warm_up=10):\n    return optimizer, warm_up\n",
        params={"limit": 3.0, "warm_up": 4},
    )

    assert definition.gradient_clipping("p") == ("p", 3.0)
    assert definition.create_lr_schedulers("o") == ("o", 4)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("gradient_clipping = 0", "gradient_clipping is 0"),
        ("gradient_clipping = True", "gradient_clipping is True"),
        ("gradient_clipping = float('inf')", "the maximum norm"),
        ("gradient_clipping = {'norm': 1, 'value': 1}", "gradient_clipping is {'norm'"),
        ("def gradient_clipping(): pass", "takes no argument"),
        ("lr_scheduler = 3", "expected a function of the optimizer"),
        ("precision = 'int8'", "precision is 'int8'"),
        ("precision = torch.float64", "precision is torch.float64"),
    ],
)
def test_invalid_update_settings_are_refused(refused, code, expected):
    assert expected in refused(f"{FILE}\n{code}\n", DefinitionError)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("precision = 'bf16-mixed'", "bf16"),
        ("precision = '16-mixed'", "fp16"),
        ("precision = 'float32'", ""),
        ("precision = torch.bfloat16", "bf16"),
        ("precision = torch.float16", "fp16"),
        ("precision = torch.float32", ""),
        ("precision = 16", "fp16"),
        ("precision = 32", ""),
        ("precision = 4", ""),
        ("precision = None", ""),
        ("def precision(labels, predictions): return 1.0", ""),
    ],
)
def test_precision_has_the_names_used_by_other_tools(define, code, expected):
    assert define(f"{FILE}\n{code}\n").precision == expected


def test_update_functions_may_be_none(define):
    definition = define(FILE + "\nlr_scheduler = averaged_model = gradient_clipping = None\n")

    assert definition.create_lr_schedulers is None
    assert definition.create_average is None
    assert definition.gradient_clipping is None


def test_callbacks_must_be_a_list_and_are_copied(define):
    one = define(FILE + "def callbacks():\n    return Net()\n")
    with pytest.raises(DefinitionError, match=r"m.py:\d+: callbacks returned a Net"):
        one.create_callbacks()

    shared = define(FILE + "callbacks = [Net()]\n")
    assert shared.create_callbacks()[0] is not shared.create_callbacks()[0]
