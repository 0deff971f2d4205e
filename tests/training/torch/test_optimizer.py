"""What an optimizer remembers, and which optimizers can be used."""

import copy
import functools

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import (
    Gated,
    batch_of,
    definition_of,
    mean_loss,
    same_bits,
    sgd,
    small_model,
    trainer_of,
)
from torch import nn

from elasticdl.data.batch import Batch
from elasticdl.errors import CheckpointMismatchError, DefinitionError, UserCodeError


class Count(torch.optim.SGD):
    """Remembers a plain number, as optimizers did before PyTorch kept tensors."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] = state.get("step", 0) + 1
                    assert isinstance(state["step"], int)
                    parameter.sub_(0.1 * parameter.grad / state["step"])


OPTIMIZERS = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "Adam": lambda p: torch.optim.Adam(p, 0.1),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, 0.1, fused=True),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1),
    "AdamW, a tensor rate": lambda p: torch.optim.AdamW(p, torch.tensor(0.1)),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.1),
    "Count": lambda p: Count(p, 0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1),
    "SGD": sgd,
    "SGD, dampened": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),
    "two groups": lambda p: torch.optim.Adam(
        [{"params": [x for x in p if x.ndim > 1]}, {"params": [x for x in p if x.ndim < 2]}], 0.1
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_new_trainer_resumes_from_a_state_of_any_optimizer(optimizer, num_steps):
    batches = [batch_of(8, seed) for seed in range(num_steps + 3)]
    whole, begun, resumed = (trainer_of(definition_of(Gated, optimizer=optimizer)) for _ in "123")
    whole.train_steps(batches)
    for batch in batches[:num_steps]:
        begun.train_steps([batch])
    # What it had learned before must be forgotten.
    resumed.train_steps([batch_of(8, 99)])
    resumed.load_state(begun.state())

    assert same_bits(resumed.state(), begun.state())
    resumed.train_steps(batches[num_steps:])
    assert same_bits(resumed.state(), whole.state())


def test_sparse_gradients_train_and_sum_like_dense_ones():
    class Ids(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 3, sparse=True)

        def forward(self, ids):
            return self.table(ids)

    batch = Batch(np.array([1, 1, 2]), np.array([0, 1, 0]), 3)
    definition = definition_of(Ids, optimizer=torch.optim.SparseAdam)
    fused, split, resumed = (trainer_of(definition, batch) for _ in range(3))
    for _ in range(2):
        fused.train_steps([batch])
        split.apply(split.gradients(batch)[0])
    resumed.load_state(split.state())

    assert same_bits(resumed.state(), split.state())
    for path, array in fused.state().items():
        np.testing.assert_allclose(array, split.state()[path], atol=1e-6, err_msg=path)


def changed_by_number(optimizer, *_):
    optimizer.param_groups[0]["lr"] = 0.01


def changed_in_place(optimizer, *_):
    optimizer.param_groups[0]["lr"].fill_(0.01)


@pytest.mark.parametrize(
    ("rate", "change"), [(0.1, changed_by_number), (torch.tensor(0.1), changed_in_place)]
)
def test_a_changed_learning_rate_is_kept(rate, change):
    def optimizer(parameters):
        made = torch.optim.SGD(parameters, copy.deepcopy(rate))
        made.register_step_post_hook(change)
        return made

    trained, fresh = (trainer_of(definition_of(optimizer=optimizer)) for _ in range(2))
    trained.train_steps([batch_of(8)])
    fresh.load_state(trained.state())

    np.testing.assert_allclose(trained.state()["optimizer/param_groups/0/lr"], 0.01)
    assert type(fresh.optimizer.param_groups[0]["lr"]) is type(rate)
    np.testing.assert_allclose(fresh.optimizer.param_groups[0]["lr"], 0.01)
    assert same_bits(fresh.state(), trained.state())


def test_a_state_without_slots_keeps_initial_optimizer_slots():
    trainer, fresh = (
        trainer_of(definition_of(optimizer=lambda p: torch.optim.Adagrad(p, 0.1))) for _ in "12"
    )
    without = {
        path: array for path, array in fresh.state().items() if not path.endswith(("sum", "step"))
    }
    trainer.train_steps([batch_of(8)])
    trainer.load_state({**without, "step": fresh.state()["step"]})

    assert same_bits(trainer.state(), fresh.state())


def test_a_state_is_not_changed_by_further_training():
    trainer = trainer_of(definition_of(optimizer=torch.optim.Adam))
    trainer.train_steps([batch_of(8)])
    state = trainer.state()
    before = {path: array.copy() for path, array in state.items()}
    trainer.load_state(state)
    trainer.train_steps([batch_of(8)])

    assert same_bits(state, before)


def test_dtypes_unknown_to_numpy_are_kept_bit_by_bit():
    def model():
        return nn.Linear(4, 3).to(torch.bfloat16)

    def loss(outputs, labels):
        return mean_loss(outputs.float(), labels)

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, x):
            return self.inner(x.to(torch.bfloat16))

    definition = definition_of(Cast, loss, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
    one, other = trainer_of(definition, seed=1), trainer_of(definition, seed=2)
    one.train_steps([batch_of(8)])
    one.apply(one.gradients(batch_of(8))[0])
    other.load_state(one.state())

    assert one.state()["model/inner.weight"].dtype.name == "bfloat16"
    assert same_bits(one.state(), other.state())
    assert other.predict(batch_of(8).features).dtype == np.float32


def test_a_checkpoint_of_another_model_is_refused_with_the_difference():
    wider = trainer_of(definition_of(lambda: nn.Linear(4, 5)))

    difference = r"weight: float32\[5, 4\] in the checkpoint, float32\["
    with pytest.raises(CheckpointMismatchError, match=difference):
        trainer_of().load_state(wider.state())


def unfreezing(parameters, *, named=False):
    first, *others = zip(["weight", "bias"], parameters, strict=True) if named else parameters
    optimizer = torch.optim.Adam(others, lr=0.02)
    steps = [0]

    def unfreeze(*_):
        steps[0] += 1
        if steps[0] == 2:
            optimizer.add_param_group({"params": [first], "lr": 0.005})

    optimizer.register_step_post_hook(unfreeze)
    return optimizer


@pytest.mark.parametrize("named", [False, True])
def test_param_groups_added_by_hooks_are_restored(named):
    batches = [batch_of(8, seed) for seed in range(5)]
    optimizer = functools.partial(unfreezing, named=named)
    whole, begun, resumed = (trainer_of(definition_of(optimizer=optimizer)) for _ in "123")
    early = begun.state()
    whole.train_steps(batches)
    begun.train_steps(batches[:3])
    resumed.load_state(begun.state())
    resumed.train_steps(batches[3:])

    assert same_bits(resumed.state(), whole.state())
    begun.load_state(early)
    assert same_bits(begun.state(), early)
    begun.train_steps(batches)
    assert same_bits(begun.state(), whole.state())


def test_a_checkpoint_of_another_optimizer_is_refused_entirely():
    momentum = definition_of(optimizer=lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
    trained, fresh = trainer_of(momentum), trainer_of(definition_of(optimizer=torch.optim.Adam))
    trained.train_steps([batch_of(8)])
    before = fresh.state()

    with pytest.raises(
        CheckpointMismatchError,
        match=r"optimizer/class: torch.optim.sgd.SGD in the checkpoint, torch.optim.adam.Adam in",
    ):
        fresh.load_state(trained.state())

    assert same_bits(fresh.state(), before)


def test_unstorable_optimizer_state_is_refused():
    class Diary(torch.optim.SGD):
        def step(self, closure=None):
            self.state[self.param_groups[0]["params"][0]]["pages"] = ["dear diary"]

    trainer = trainer_of(definition_of(optimizer=functools.partial(Diary, lr=0.1)))

    with pytest.raises(DefinitionError, match="Diary keeps a list in 'pages'.*Keep tensors"):
        trainer.train_steps([batch_of(8)])


def test_unstorable_optimizer_state_is_refused_on_workers():
    class Projected(torch.optim.SGD):
        def step(self, closure=None):
            self.state[self.param_groups[0]["params"][0]]["projector"] = object()

    trainer = trainer_of(definition_of(optimizer=functools.partial(Projected, lr=0.1)))
    contribution, _ = trainer.gradients(batch_of(8))

    with pytest.raises(DefinitionError, match="Projected keeps a object in 'projector'"):
        trainer.apply(contribution)


def test_non_persistent_buffers_are_not_part_of_the_state():
    class Cached(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("cache", torch.zeros(1), persistent=False)

    assert "model/cache" not in trainer_of(definition_of(Cached)).state()


def test_a_tied_parameter_is_kept_once_and_stays_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(self.one(x))

    trainer, fresh = trainer_of(definition_of(Tied)), trainer_of(definition_of(Tied), seed=9)
    trainer.train_steps([batch_of(8)])
    fresh.load_state(trainer.state())

    assert [path for path in trainer.state() if path.startswith("model/")] == ["model/one.weight"]
    np.testing.assert_array_equal(
        fresh.predict(batch_of(8).features), trainer.predict(batch_of(8).features)
    )


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "problem"),
    [
        ("adam", "the optimizer is a builtins.str"),
        (lambda p: "adam", "the optimizer is a builtins.str"),
        (torch.optim.LBFGS, "LBFGS evaluates the loss any number of times"),
    ],
)
def test_an_object_that_is_not_an_optimizer_is_refused(optimizer, problem):
    with pytest.raises(DefinitionError, match=problem):
        trainer_of(definition_of(optimizer=optimizer))


@pytest.mark.parametrize(
    "returned",
    [
        lambda optimizer, rate: (optimizer, rate),
        lambda optimizer, rate: ([optimizer], [rate]),
        lambda optimizer, rate: {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate}},
        lambda optimizer, rate: rate,
    ],
    ids=["tuple", "lists", "dict", "alone"],
)
def test_returning_a_scheduler_is_refused_with_where_it_belongs(returned):
    def optimizer(parameters):
        made = sgd(parameters)
        return returned(made, torch.optim.lr_scheduler.ReduceLROnPlateau(made))

    with pytest.raises(
        DefinitionError, match=r"in a separate function: def lr_scheduler\(optimizer\)"
    ):
        trainer_of(definition_of(optimizer=optimizer))


def test_errors_of_a_pytorch_step_are_not_blamed_on_a_closure():
    trainer = trainer_of(definition_of(optimizer=lambda p: torch.optim.Adam(p, capturable=True)))

    with pytest.raises(UserCodeError, match="capturable=True, params and state_steps") as caught:
        trainer.train_steps([batch_of(8)])

    assert "closure" not in str(caught.value)


def test_an_optimizer_that_ignores_its_parameters_is_refused():
    # It is the model's own; a resumed training would find out when it is too late.
    model = small_model()
    definition = definition_of(lambda: model, optimizer=lambda p: sgd(model.parameters()))

    with pytest.raises(
        DefinitionError, match="for other parameters than those passed to the function"
    ):
        trainer_of(definition)


# --- zero_grad() of an optimizer's own -----------------------------------------------------------


def halves(optimizer):
    for parameter in parameters_in(optimizer):
        parameter.grad.mul_(0.5)


def zeroes(optimizer):
    for parameter in parameters_in(optimizer):
        parameter.grad.zero_()


def anneals(optimizer):
    torch.optim.SGD.zero_grad(optimizer)
    optimizer.param_groups[0]["lr"] *= 0.9


def moves(optimizer):
    for parameter in parameters_in(optimizer):
        parameter.grad = None
        parameter.data.add_(1.0)


def clears(optimizer):
    for parameter in parameters_in(optimizer):
        parameter.grad = None


def parameters_in(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def zeroing(zero_grad):
    """Return what makes an optimizer with a zero_grad() of its own."""
    methods = {"zero_grad": lambda self, set_to_none=True: zero_grad(self)}
    kind = type("Zeroing", (torch.optim.SGD,), methods)
    return lambda parameters: kind(parameters, 0.1)


@pytest.mark.parametrize(
    ("zero_grad", "what"),
    [
        (halves, "leaves gradients where it should set None"),
        (zeroes, "leaves gradients of zero where it should set None"),
        (anneals, "changes the optimizer or its parameters"),
        (moves, "changes the optimizer or its parameters"),
    ],
)
def test_a_zero_grad_that_does_more_than_clear_gradients_is_refused(zero_grad, what):
    where = rf"{__file__}:\d+: zero_grad\(\) of Zeroing {what}"
    with pytest.raises(DefinitionError, match=where):
        trainer_of(definition_of(optimizer=zeroing(zero_grad)))


class Accumulating(torch.optim.SGD):
    """Steps after every fourth batch, and keeps the gradients until then."""

    def __init__(self, parameters):
        super().__init__(parameters, 0.1)
        self.calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls % 4 == 0:
            super().step()

    def zero_grad(self, set_to_none=True):
        if self.calls % 4 == 0:
            super().zero_grad(set_to_none)


def test_a_zero_grad_that_accumulates_gradients_is_refused():
    what = r"zero_grad\(\) of Accumulating leaves gradients where it should set None"
    with pytest.raises(DefinitionError, match=what):
        trainer_of(definition_of(optimizer=Accumulating))


def test_a_zero_grad_that_clears_gradients_changes_nothing():
    one, other = (trainer_of(definition_of(optimizer=make)) for make in (zeroing(clears), sgd))
    for trainer in (one, other):
        trainer.train_steps([batch_of(8)])

    np.testing.assert_array_equal(one.state()["model/weight"], other.state()["model/weight"])
