"""Every optimizer of PyTorch equals a plain loop: here, on workers and after a resume."""

import collections
import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import batch_of, definition_of, same_bits, sgd, trainer_of
from tests.training.torch.plain import (
    assert_close,
    in_process,
    plain_loop,
    weights_of,
    workers_loop,
)
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from elasticdl.data.batch import Batch
from elasticdl.errors import CheckpointMismatchError, DefinitionError

OPTIMIZERS = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.1, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, 0.1),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "Adam, foreach": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, 0.1, fused=True),
    "Adam, maximize": lambda p: torch.optim.Adam(p, 0.01, maximize=True),
    "Adam, a tensor rate": lambda p: torch.optim.Adam(p, torch.tensor(0.1)),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.1, t0=1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),
    "SGD, nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "SGD, foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "two groups": lambda p: torch.optim.AdamW(
        [
            {"params": [x for x in p if x.ndim > 1], "weight_decay": 0.1},
            {"params": [x for x in p if x.ndim < 2], "weight_decay": 0.0, "lr": 0.2},
        ],
        0.1,
    ),
}
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda p: torch.optim.Muon([x for x in p if x.ndim == 2], 0.1)


def batches(num=6, size=12):
    return [batch_of(size, seed) for seed in range(num)]


def resumed(definition, some, at):
    """Train to a step, and go on in a new trainer."""
    first = trainer_of(definition, some[0])
    first.train_steps(some[:at])
    state = first.state()
    second = trainer_of(definition, some[0], seed=9)
    second.load_state(state)
    assert same_bits(second.state(), state)
    second.train_steps(some[at:])
    return second


def assert_like_a_plain_loop(definition, some, atol=1e-6):
    losses, weights = plain_loop(definition, some)
    mine, here = in_process(definition, some)
    np.testing.assert_array_equal(mine, losses)
    for at in (1, len(some) - 2):
        for path, array in weights_of(resumed(definition, some, at)).items():
            np.testing.assert_array_equal(array, weights[path], err_msg=f"{path} after {at}")
    for path, array in here.items():
        np.testing.assert_array_equal(array, weights[path], err_msg=path)
    assert_close(workers_loop(definition, some), weights, atol)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers_match_a_plain_loop(optimizer):
    assert_like_a_plain_loop(definition_of(optimizer=optimizer), batches(), atol=2e-5)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.Adagrad(p, 0.1),
        lambda p: torch.optim.SparseAdam(p, 0.1),
    ],
)
def test_sparse_gradients_match_a_plain_loop(optimizer):
    class Ids(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 3, sparse=True)

        def forward(self, ids):
            return self.table(ids)

    rng = np.random.default_rng(0)
    some = [Batch(rng.integers(0, 7, 12), rng.integers(0, 3, 12), 12) for _ in range(5)]
    definition = definition_of(Ids, optimizer=optimizer)
    losses, weights = plain_loop(definition, some)
    mine, here = in_process(definition, some)

    np.testing.assert_array_equal(mine, losses)
    assert_close(here, weights, atol=0)
    assert_close(weights_of(resumed(definition, some, 2)), weights)
    assert_close(workers_loop(definition, some), weights)


# --- what a hook moves ---------------------------------------------------------------------------


def scheduled(make):
    def optimizer(parameters):
        made = torch.optim.AdamW(parameters, 0.1, weight_decay=0.1)
        scheduler = make(made)
        made.register_step_post_hook(lambda *_: scheduler.step())
        return made

    return optimizer


SCHEDULERS = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=20),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, 2, cycle_momentum=False),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 10),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_scheduler_stepped_by_a_hook_resumes_as_in_a_plain_loop(make):
    assert_like_a_plain_loop(definition_of(optimizer=scheduled(make)), batches(), atol=2e-5)


def test_a_scheduler_that_nothing_steps_is_refused():
    def optimizer(parameters):
        made = torch.optim.SGD(parameters, 0.1)
        lr_scheduler.StepLR(made, 2)
        return made

    with pytest.raises(DefinitionError, match=r"nothing here would call its step\(\)"):
        trainer_of(definition_of(optimizer=optimizer))


def moving_everything(parameters):
    made = torch.optim.AdamW(parameters, 0.1)

    def move(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            group["betas"] = (group["betas"][0] * 0.9, 0.99)
            group["weight_decay"] += 0.1
            group["eps"] *= 2
            group["foreach"] = True

    made.register_step_post_hook(move)
    return made


def counting(parameters):
    made, calls = torch.optim.SGD(parameters, 0.1), 0

    def decay(optimizer, args, kwargs):
        nonlocal calls
        calls += 1
        optimizer.param_groups[0]["lr"] = 0.1 / calls

    made.register_step_post_hook(decay)
    return made


STEPS_MADE = [0]


def counting_in_a_list(parameters):
    made = torch.optim.SGD(parameters, 0.1)

    def decay(optimizer, args, kwargs):
        STEPS_MADE[0] += 1
        optimizer.param_groups[0]["lr"] = 0.1 / STEPS_MADE[0]

    STEPS_MADE[0] = 0
    made.register_step_post_hook(decay)
    return made


def remembering_norms(parameters):
    """Clip at the mean of the last norms, as some do."""
    made, norms = torch.optim.SGD(parameters, 0.5), collections.deque(maxlen=3)

    def clip(optimizer, args, kwargs):
        limit = sum(norms) / len(norms) / 2 if norms else 0.1
        norms.append(float(clip_grad_norm_(parameters, limit)))

    made.register_step_pre_hook(clip)
    return made


def pulled_to_an_average(parameters):
    made = torch.optim.SGD(parameters, 0.1)
    averages = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def pull(optimizer, args, kwargs):
        for parameter, average in zip(parameters, averages, strict=True):
            average.lerp_(parameter, 0.5)
            parameter.lerp_(average, 0.3)

    made.register_step_post_hook(pull)
    return made


class Warming(torch.optim.SGD):
    """Remembers in attributes, and in its state beside the parameters."""

    def __init__(self, parameters):
        super().__init__(parameters, 0.1)
        self.num_steps, self.history = 0, []

    def step(self, closure=None):
        self.num_steps += 1
        seen = self.state["everywhere"].setdefault("seen", torch.zeros(()))
        seen += 1
        self.history.append(self.num_steps)
        self.param_groups[0]["lr"] = 0.1 / (self.num_steps + float(seen) + sum(self.history))
        super().step(closure)


def clipping(parameters):
    made = torch.optim.SGD(parameters, 0.5, momentum=0.9)

    def clip(optimizer, args, kwargs):
        clip_grad_norm_(parameters, 0.05)

    made.register_step_pre_hook(clip)
    return made


class Annealing:
    """A hook that is an object, and counts in an attribute."""

    def __init__(self):
        self.num_steps = 0

    def __call__(self, optimizer, *_):
        self.num_steps += 1
        optimizer.param_groups[0]["lr"] = 0.1 / self.num_steps


def annealing(parameters, wrap=lambda hook: hook):
    made = torch.optim.SGD(parameters, 0.1)
    made.register_step_pre_hook(wrap(Annealing()))
    return made


class AnnealingModule(nn.Module):
    """A hook that is a module, and counts in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("num_steps", torch.zeros(()))

    def forward(self, optimizer, *_):
        self.num_steps += 1
        optimizer.param_groups[0]["lr"] = 0.1 / float(self.num_steps)


def counting_on_the_optimizer(parameters):
    made = torch.optim.Adam(parameters, 0.1)
    made.num_calls = 0

    def anneal(optimizer, args, kwargs):
        optimizer.num_calls += 1
        optimizer.param_groups[0]["lr"] = 0.1 / optimizer.num_calls

    made.register_step_post_hook(anneal)
    return made


def counting_in_a_new_attribute(parameters):
    made = torch.optim.Adam(parameters, 0.1)

    def anneal(optimizer, args, kwargs):
        optimizer.num_calls = getattr(optimizer, "num_calls", 0) + 1
        optimizer.is_late = np.float32(optimizer.num_calls) > 2
        optimizer.param_groups[0]["lr"] = 0.1 / optimizer.num_calls

    made.register_step_post_hook(anneal)
    return made


def numpy_betas(parameters):
    made = torch.optim.Adam(parameters, 0.1)
    # Adam itself refuses them as arguments.
    made.param_groups[0]["betas"] = np.float32(0.93), np.float32(0.97)
    return made


def amplifying_by_id(parameters):
    """Grokfast: the slow part of each gradient, kept by `id(parameter)`."""
    made, slow = torch.optim.AdamW(parameters, 0.02), {}

    def amplify(optimizer, args, kwargs):
        for parameter in parameters:
            before = slow.get(id(parameter), parameter.grad)
            slow[id(parameter)] = 0.9 * before + 0.1 * parameter.grad
            parameter.grad = parameter.grad + 2 * slow[id(parameter)]

    made.register_step_pre_hook(amplify)
    return made


def with_another_step(parameters):
    made, calls = torch.optim.SGD(parameters, 0.1), 0
    step = made.step

    def annealed_step(closure=None):
        nonlocal calls
        calls += 1
        made.param_groups[0]["lr"] = 0.1 / calls
        return step(closure)

    made.step = annealed_step
    return made


HOOKS = {
    "all values of a group": moving_everything,
    "an object": annealing,
    "a partial of an object": functools.partial(annealing, wrap=functools.partial),
    "a module": functools.partial(annealing, wrap=lambda _: AnnealingModule()),
    "an attribute of the optimizer": counting_on_the_optimizer,
    "a new attribute of the optimizer": counting_in_a_new_attribute,
    "betas that are numbers of NumPy": numpy_betas,
    "ids of parameters": amplifying_by_id,
    "another step": with_another_step,
    "a counter": counting,
    "a list": counting_in_a_list,
    "a deque of norms": remembering_norms,
    "tensors": pulled_to_an_average,
    "attributes": Warming,
    "clipping": clipping,
}


@pytest.mark.parametrize("optimizer", HOOKS.values(), ids=HOOKS)
def test_the_state_of_an_optimizer_and_its_hooks_is_kept(optimizer):
    definition, some = definition_of(optimizer=optimizer), batches()
    _, weights = plain_loop(definition, some)

    for path, array in weights_of(resumed(definition, some, 3)).items():
        np.testing.assert_array_equal(array, weights[path], err_msg=path)


class CountingFactor:
    def __init__(self):
        self.num_calls = 0

    def factor(self, step):
        self.num_calls += 1
        return 1 / self.num_calls


def counting_factor(scale=1.0):
    calls = 0

    def factor(step):
        nonlocal calls
        calls += 1
        return scale / calls

    return factor


COUNTING_SCHEDULERS = {
    "closure": lambda o: lr_scheduler.LambdaLR(o, counting_factor()),
    "closures of groups": lambda o: lr_scheduler.LambdaLR(o, [counting_factor()]),
    "method": lambda o: lr_scheduler.LambdaLR(o, CountingFactor().factor),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, counting_factor()),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(
        o, 0.01, 0.2, 2, cycle_momentum=False, scale_fn=counting_factor(), scale_mode="iterations"
    ),
    "within others": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.LambdaLR(o, counting_factor())], [1]
    ),
}


@pytest.mark.parametrize("make", COUNTING_SCHEDULERS.values(), ids=COUNTING_SCHEDULERS)
def test_the_state_of_functions_that_a_scheduler_calls_is_kept(make):
    definition = replace(
        definition_of(optimizer=sgd),
        create_lr_schedulers=lambda optimizer: {"scheduler": make(optimizer), "interval": "step"},
    )
    trained, again = trainer_of(definition), trainer_of(definition)
    trained.train_steps(batches(3))
    again.load_state(trained.state())
    for trainer in (trained, again):
        trainer.train_steps(batches(6)[3:])

    assert same_bits(again.state(), trained.state())


def test_settings_of_a_schedulers_function_are_those_of_the_file_after_a_resume():
    def definition(scale):
        return replace(
            definition_of(optimizer=sgd),
            create_lr_schedulers=lambda optimizer: lr_scheduler.LambdaLR(
                optimizer, counting_factor(scale)
            ),
        )

    trained, again = trainer_of(definition(1.0)), trainer_of(definition(2.0))
    trained.train_steps(batches(3))
    again.load_state(trained.state())
    again.train_steps(batches(1))
    again.hooks.epoch_end(0, {})

    assert again.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 2 / 2)


def test_a_model_that_a_schedulers_function_uses_is_stored_once():
    model = nn.Linear(4, 3)
    definition = replace(
        definition_of(lambda: model, optimizer=sgd),
        create_lr_schedulers=lambda o: lr_scheduler.LambdaLR(o, lambda _: float(model.training)),
    )

    state = trainer_of(definition).state()

    assert not [path for path in state if "functions/" in path]


class Decay(lr_scheduler.LRScheduler):
    """A scheduler that counts calls, and whose state has the attributes named in `kept`."""

    def __init__(self, optimizer, kept):
        self.kept, self.calls, self.factors = kept, 0, [1.0]
        super().__init__(optimizer)

    def get_lr(self):
        self.calls += 1
        self.factors.append(0.9 * self.factors[-1])
        return [base / self.calls * self.factors[-1] for base in self.base_lrs]

    def state_dict(self):
        return {name: getattr(self, name) for name in ("last_epoch", "_step_count", *self.kept)}

    def load_state_dict(self, state):
        vars(self).update(state)


@pytest.mark.parametrize("kept", [(), ("calls",), ("factors",)])
def test_a_scheduler_whose_state_omits_what_it_uses_is_refused(kept):
    definition = replace(
        definition_of(optimizer=sgd), create_lr_schedulers=lambda o: Decay(o, kept)
    )

    with pytest.raises(DefinitionError, match=r"state_dict\(\) of Decay omits what step\(\) uses"):
        trainer_of(definition)


def test_a_scheduler_with_a_complete_state_is_accepted_and_not_moved_by_the_trial():
    definition = replace(
        definition_of(optimizer=sgd),
        create_lr_schedulers=lambda o: Decay(o, ("calls", "factors")),
    )

    assert trainer_of(definition).optimizer.param_groups[0]["lr"] == pytest.approx(0.09)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda o: lr_scheduler.StepLR(o, "10"), "StepLR, .* step_size is '10', a str; expected a"),
        (lambda o: lr_scheduler.ExponentialLR(o, None), "ExponentialLR, .* gamma is None; expect"),
        (
            lambda o: lr_scheduler.CosineAnnealingLR(o, [9]),
            r"Cosine.* T_max is \[9\], a list;",
        ),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, patience="3"), "Reduce.* patience is '3'"),
        (
            lambda o: lr_scheduler.SequentialLR(
                o, [lr_scheduler.ConstantLR(o), lr_scheduler.PolynomialLR(o, "4")], [3]
            ),
            "PolynomialLR, .* total_iters is '4'",
        ),
        (
            lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(o, "10")]),
            "StepLR, .* step_size is '10'",
        ),
    ],
)
def test_a_scheduler_whose_option_has_a_wrong_type_is_refused_before_training(make, what):
    definition = replace(definition_of(optimizer=sgd), create_lr_schedulers=make)

    with pytest.raises(DefinitionError, match=rf"^model.py:1: .*\(\): step\(\) of {what}"):
        trainer_of(definition)


def test_trying_a_scheduler_does_not_move_it():
    schedulers = []

    def make(optimizer):
        schedulers.append(lr_scheduler.ExponentialLR(optimizer, 0.5))
        return schedulers[0]

    trainer = trainer_of(replace(definition_of(optimizer=sgd), create_lr_schedulers=make))

    assert schedulers[0].last_epoch == 0
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("combines", ["Sequential", "Chained", "Cyclic"])
def test_trying_a_scheduler_does_not_call_the_users_function(combines):
    calls = []

    def make(optimizer):
        if combines == "Cyclic":
            scheduler = lr_scheduler.CyclicLR(
                optimizer, 0.1, 0.2, scale_fn=lambda n: calls.append(n) or 1.0, scale_mode="cycle"
            )
            return {"scheduler": scheduler, "interval": "step"}
        one = lr_scheduler.LambdaLR(optimizer, lambda n: calls.append(n) or 1.0)
        if combines == "Chained":
            return lr_scheduler.ChainedScheduler([one])
        return lr_scheduler.SequentialLR(optimizer, [one, lr_scheduler.ConstantLR(optimizer)], [3])

    model = torch.nn.Linear(4, 3)
    make(torch.optim.SGD(model.parameters(), 0.1))
    num_calls = len(calls)
    calls.clear()

    trainer_of(replace(definition_of(optimizer=sgd), create_lr_schedulers=make))

    assert len(calls) == num_calls


def test_a_schedulers_function_that_draws_is_refused():
    ticks = itertools.cycle([1.0, 0.5])
    definition = replace(
        definition_of(optimizer=sgd),
        create_lr_schedulers=lambda o: lr_scheduler.LambdaLR(o, lambda _: next(ticks)),
    )

    with pytest.raises(DefinitionError, match="LambdaLR keeps a itertools.cycle"):
        trainer_of(definition)


@pytest.mark.parametrize("wrap", [lambda hook: hook, functools.partial], ids=["", "partial"])
@pytest.mark.parametrize(
    "register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook]
)
def test_a_hook_of_all_optimizers_is_refused(register, wrap):
    def optimizer(parameters):
        handles.append(register(wrap(Annealing())))
        return torch.optim.SGD(parameters, 0.1)

    handles = []
    try:
        with pytest.raises(DefinitionError, match="Annealing is registered as a hook of all opti"):
            trainer_of(definition_of(optimizer=optimizer))
    finally:
        for handle in handles:
            handle.remove()


def test_param_groups_are_restored_completely():
    definition = definition_of(optimizer=moving_everything)
    trained = trainer_of(definition)
    trained.train_steps(batches(3))
    fresh = trainer_of(definition)
    fresh.load_state(trained.state())

    one, other = (
        {k: v for k, v in t.optimizer.param_groups[0].items() if k != "params"}
        for t in (trained, fresh)
    )
    assert one == other
    assert [type(v) for v in one.values()] == [type(v) for v in other.values()]


def test_different_param_group_values_are_named():
    def with_label(parameters):
        return torch.optim.SGD([{"params": parameters, "label": "all"}], 0.1)

    labelled = trainer_of(definition_of(optimizer=with_label))
    plain = trainer_of(definition_of())

    with pytest.raises(CheckpointMismatchError, match="param_groups/0/label: missing in the check"):
        labelled.load_state(plain.state())


def drawing_by_itself(parameters):
    made, ticks = torch.optim.SGD(parameters, 0.1), itertools.cycle([0.1, 0.2])

    def change(optimizer, args, kwargs):
        optimizer.param_groups[0]["lr"] = next(ticks)

    made.register_step_post_hook(change)
    return made


class Wrapping(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, 0.1)
        self.inner = torch.optim.Adam(parameters, 0.1)


@pytest.mark.parametrize(
    ("optimizer", "what"),
    [
        (drawing_by_itself, r"a itertools.cycle \(hook 0, ticks\)"),
        (Wrapping, r"another optimizer, Adam, \(optimizer.inner\)"),
    ],
)
def test_unstorable_state_is_refused_when_creating_the_trainer(optimizer, what):
    with pytest.raises(DefinitionError, match=what):
        trainer_of(definition_of(optimizer=optimizer))
