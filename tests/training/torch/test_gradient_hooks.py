"""State of hooks of gradients, and of what optimizers' hooks keep on parameters and modules."""

import collections
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import batch_of, definition_of, sgd, trainer_of
from tests.training.torch.plain import weights_of
from torch import nn

from elasticdl.errors import DefinitionError


def batches(num=5):
    return [batch_of(12, seed) for seed in range(num)]


def plain_weights(definition, some):
    """Train a model as a script does; a copy of it would not have its hooks."""
    model = trainer_of(definition, some[0]).model.train()
    optimizer = definition.create_optimizer()(list(model.parameters()), model)
    for batch in some:
        optimizer.zero_grad()
        outputs = model(torch.from_numpy(batch.features))
        definition.loss(outputs, torch.from_numpy(batch.labels)).backward()
        optimizer.step()
    return {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}


def assert_resumes_as_a_plain_loop(definition):
    some = batches()
    weights = plain_weights(definition, some)
    for at in (1, 3):
        first, second = trainer_of(definition, some[0]), trainer_of(definition, some[0], seed=9)
        first.train_steps(some[:at])
        second.load_state(first.state())
        second.train_steps(some[at:])
        for path, array in weights_of(second).items():
            np.testing.assert_array_equal(array, weights[path], err_msg=f"{path} after {at}")


class Average:
    """A hook that averages gradients; its attribute is set by the first call."""

    def __call__(self, gradient):
        before = getattr(self, "average", None)
        self.average = gradient.clone() if before is None else 0.5 * (before + gradient)
        return self.average


class Counting(nn.Module):
    """Divides a gradient by the number of calls, in the hook that `register` registers."""

    def __init__(self, register):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.num_calls, self.norms = 0, []
        register(self)

    def scale(self, gradient):
        self._count()
        return gradient / self.num_calls

    def scale_input(self, module, inputs, outputs):
        self.norms.append(inputs[0].norm().item())
        return (inputs[0] / len(self.norms),)

    def scale_output(self, module, outputs):
        self._count()
        return (outputs[0] / self.num_calls,)

    def _count(self):
        self.num_calls += 1

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def with_a_closure():
    model, calls = nn.Linear(4, 3), 0

    def scale(gradient):
        nonlocal calls
        calls += 1
        return gradient / calls

    model.weight.register_hook(scale)
    return model


def with_a_dict_of_parameters():
    model, calls = nn.Linear(4, 3), {}

    def scale(parameter):
        calls[parameter] = calls.get(parameter, 0) + 1
        parameter.grad.div_(calls[parameter])

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(scale)
    return model


def with_objects():
    model = nn.Linear(4, 3)
    for parameter in model.parameters():
        parameter.register_hook(Average())
    return model


def counting_by(register):
    return lambda: Counting(register)


MODELS = {
    "a closure": with_a_closure,
    "a dict of parameters": with_a_dict_of_parameters,
    "objects": with_objects,
    "method of the model": counting_by(lambda m: m.first.weight.register_hook(m.scale)),
    "lambda": counting_by(lambda m: m.first.weight.register_hook(lambda g: 2 * m.scale(g))),
    "full backward": counting_by(lambda m: m.last.register_full_backward_hook(m.scale_input)),
    "full backward pre": counting_by(
        lambda m: m.last.register_full_backward_pre_hook(m.scale_output)
    ),
}


@pytest.mark.parametrize("create", MODELS.values(), ids=MODELS)
def test_the_state_of_a_hook_of_gradients_is_kept(create):
    assert_resumes_as_a_plain_loop(definition_of(create))


def keeping_on_parameters(parameters):
    made = torch.optim.SGD(parameters, 0.1)

    def average(*_):
        for p in parameters:
            p.average = 0.5 * getattr(p, "average", torch.zeros_like(p)) + p.grad
            p.grad = p.average.clone()

    made.register_step_pre_hook(average)
    return made


def keyed_by(key):
    def optimizer(parameters):
        made, averages, seen = torch.optim.SGD(parameters, 0.1), {}, set()

        def average(*_):
            for p in parameters:
                before = averages[key(p)] if id(p) in seen else p.grad
                seen.add(id(p))
                averages[key(p)] = 0.5 * (before + p.grad)
                p.grad = averages[key(p)].clone()

        made.register_step_pre_hook(average)
        return made

    return optimizer


def counting_in(holder_of, name="num_calls"):
    """An optimizer whose hook counts in an item of what `holder_of(optimizer)` returns."""

    def optimizer(parameters):
        made = torch.optim.SGD(parameters, 0.1)
        holder = holder_of(made)

        def anneal(*_):
            holder[name] = holder.get(name, 0) + 1
            made.param_groups[0]["lr"] = 0.1 / holder[name]

        made.register_step_pre_hook(anneal)
        return made

    return optimizer


def counting_in_a_defaultdict(factory):
    def optimizer(parameters):
        made, sums = torch.optim.SGD(parameters, 0.1), collections.defaultdict(factory)

        def average(*_):
            for p in parameters:
                sums[p] = sums[p] + p.grad
                p.grad = 0.5 * sums[p]

        made.register_step_pre_hook(average)
        return made

    return optimizer


class Annealing:
    num_calls = 0

    @classmethod
    def of_class(cls, optimizer, *_):
        cls.num_calls += 1
        optimizer.param_groups[0]["lr"] = 0.1 / cls.num_calls


class Filling:
    norms: ClassVar = []

    def anneal(self, optimizer, *_):
        self.norms.append(1.0)
        optimizer.param_groups[0]["lr"] = 0.1 / len(self.norms)


def filling_a_list_of_a_class(parameters):
    Filling.norms.clear()
    made = torch.optim.SGD(parameters, 0.1)
    made.register_step_pre_hook(Filling().anneal)
    return made


def counting_in_a_function(parameters):
    def anneal(optimizer, *_):
        anneal.num_calls += 1
        optimizer.param_groups[0]["lr"] = 0.1 / anneal.num_calls

    anneal.num_calls = 0
    made = torch.optim.SGD(parameters, 0.1)
    made.register_step_pre_hook(anneal)
    return made


def counting_in_a_class(parameters):
    Annealing.num_calls = 0
    made = torch.optim.SGD(parameters, 0.1)
    made.register_step_pre_hook(Annealing.of_class)
    return made


def with_noise(generator, draw):
    def optimizer(parameters):
        made, drawing = torch.optim.SGD(parameters, 0.1), generator()

        def disturb(*_):
            for p in parameters:
                p.grad.add_(draw(drawing))

        made.register_step_pre_hook(disturb)
        return made

    return optimizer


OPTIMIZERS = {
    "attributes of parameters": keeping_on_parameters,
    "tuples with ids": keyed_by(lambda p: (id(p), "average")),
    "text with ids": keyed_by(lambda p: f"average of {id(p)}"),
    "text with hexadecimal ids": keyed_by(lambda p: f"average of {id(p):#x}"),
    "hexadecimal ids": keyed_by(lambda p: hex(id(p))),
    "defaults": counting_in(lambda optimizer: optimizer.defaults),
    "a defaultdict": counting_in_a_defaultdict(float),
    "a defaultdict with a lambda": counting_in_a_defaultdict(lambda: 0.0),
    "a class": counting_in_a_class,
    "a list of a class": filling_a_list_of_a_class,
    "a function": counting_in_a_function,
    "a generator of NumPy": with_noise(lambda: np.random.default_rng(1), lambda g: g.normal()),
    "a generator of PyTorch": with_noise(
        lambda: torch.Generator().manual_seed(1), lambda g: torch.rand((), generator=g).item()
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_what_a_hook_of_an_optimizer_keeps_elsewhere_is_kept(optimizer):
    assert_resumes_as_a_plain_loop(definition_of(optimizer=optimizer))


def test_an_attribute_of_the_model_that_a_hook_of_the_optimizer_counts_in_is_kept():
    def create():
        model = nn.Linear(4, 3)
        made.append(model)
        return model

    def optimizer(parameters):
        model, made_one = made[-1], torch.optim.SGD(parameters, 0.1)
        model.num_calls = 0

        def anneal(*_):
            model.num_calls += 1
            made_one.param_groups[0]["lr"] = 0.1 / model.num_calls

        made_one.register_step_pre_hook(anneal)
        return made_one

    made = []
    assert_resumes_as_a_plain_loop(definition_of(create, optimizer=optimizer))


def test_attributes_of_parameters_that_a_checkpoint_lacks_are_removed():
    trained = trainer_of(definition_of(optimizer=keeping_on_parameters))
    initial = trained.state()
    trained.train_steps(batches(2))
    trained.load_state(initial)

    assert not hasattr(trained.model.weight, "average")


def test_an_attribute_of_a_parameter_that_cannot_be_stored_is_refused():
    def optimizer(parameters):
        made = torch.optim.SGD(parameters, 0.1)
        made.register_step_pre_hook(lambda *_: setattr(parameters[0], "held", object()))
        return made

    trainer = trainer_of(definition_of(optimizer=optimizer))

    with pytest.raises(DefinitionError, match=r"a builtins.object \(held of the parameter weight"):
        trainer.train_steps(batches(1))


def test_a_setting_of_a_gradient_hook_is_that_of_the_file_after_a_resume():
    def create(scale, others):
        model = nn.Linear(4, 3)
        model.weight.register_hook(lambda gradient: scale * gradient if others else gradient)
        return model

    trained = trainer_of(definition_of(lambda: create(1.0, [object()])))
    again = trainer_of(definition_of(lambda: create(0.0, [object()])))
    trained.train_steps(batches(1))
    again.load_state(trained.state())
    before = again.model.weight.detach().clone()
    again.train_steps(batches(1))

    assert torch.equal(again.model.weight, before)


def test_a_gradient_hook_that_changes_what_cannot_be_stored_is_refused():
    model, moments = nn.Linear(4, 3), iter(range(99))
    held = {"now": object()}

    def remember(gradient):
        held["now"] = object()

    model.weight.register_hook(remember)
    held["moments"] = moments
    trainer = trainer_of(definition_of(lambda: model))

    with pytest.raises(DefinitionError, match=r"hooks\.py:\d+: a hook of .* keeps .* held\)"):
        held["one more"] = 1
        trainer.train_steps(batches(1))


class HookInForward(nn.Module):
    def __init__(self, hook):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.hook, self.value, self.norms = hook, None, []

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if x.requires_grad:
            x.register_hook(lambda gradient: self.hook(self, gradient))
        return self.last(x)


def count(model, gradient):
    model.value = (model.value or 0) + 1
    return gradient / model.value


def average(model, gradient):
    model.value = gradient if model.value is None else 0.5 * (model.value + gradient)
    return model.value


@pytest.mark.parametrize("hook", [count, average])
def test_a_hook_of_a_tensor_in_forward_that_keeps_state_is_refused(hook):
    with pytest.raises(DefinitionError, match="attribute value of the model .* Keep .*in a? ?buff"):
        trainer_of(definition_of(lambda: HookInForward(hook)))


def log(model, gradient):
    model.norms.append(gradient.norm().item())


def keep_the_last(model, gradient):
    model.value = gradient


@pytest.mark.parametrize("hook", [log, keep_the_last, lambda _, gradient: gradient.clamp(-1, 1)])
def test_a_hook_of_a_tensor_in_forward_may_log(hook):
    trainer = trainer_of(definition_of(lambda: HookInForward(hook), optimizer=sgd))

    trainer.train_steps(batches(2))
    assert len(trainer.model.norms) == (2 if hook is log else 0)
