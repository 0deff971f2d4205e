"""What a training here would ignore, lose or sum up wrongly is refused by name."""

import itertools
import logging
import threading
import warnings
from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.utils.module_tracker
from tests.training.torch.conftest import batch_of, definition_of, same_bits, sgd, trainer_of
from tests.training.torch.plain import assert_parity
from torch import nn
from torch.nn.utils import prune

from elasticdl.errors import DefinitionError


class Lightning(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def training_step(self, batch, number):
        return 0.0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1.0)


def test_custom_steps_of_a_model_are_refused_with_their_line():
    line = Lightning.training_step.__code__.co_firstlineno
    what = rf"{__file__}:{line}: Lightning has training_step\(\), configure_optimizers\(\)"
    for kind in (Lightning, type("Below", (Lightning,), {})):
        with pytest.raises(DefinitionError, match=what):
            trainer_of(definition_of(kind))


def test_the_module_of_an_exported_program_is_refused():
    def create_model():
        return torch.export.export(nn.Linear(4, 3), (torch.ones(2, 4),)).module()

    with pytest.raises(DefinitionError, match="has no training and evaluation mode"):
        trainer_of(definition_of(create_model))


def test_a_model_without_values_is_refused():
    def create_model():
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, device="meta"))

    with pytest.raises(DefinitionError, match="1.weight of the model is on the device 'meta'"):
        trainer_of(definition_of(create_model))


def test_extra_state_is_refused_with_its_line():
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"scale": 1.0}

    with pytest.raises(DefinitionError, match=r"test_refusals.py:\d+: Extra \(1\) keeps extra"):
        trainer_of(definition_of(lambda: nn.Sequential(nn.ReLU(), Extra(4, 3))))


@pytest.mark.parametrize(
    ("register", "name"),
    [
        (lambda m: m.register_state_dict_pre_hook(clamp), "a state_dict_pre_hook of Linear"),
        (lambda m: m.register_state_dict_post_hook(clamp), "a state_dict_post_hook of Linear"),
        (lambda m: m.register_load_state_dict_pre_hook(clamp), "load_state_dict_pre_hook of Lin"),
        (lambda m: m.register_load_state_dict_post_hook(clamp), "load_state_dict_post_hook of Li"),
    ],
)
def test_hooks_of_the_state_dict_are_reported_and_do_not_run(caplog, register, name):
    def create_model():
        module = nn.Linear(4, 3)
        register(module)
        return module

    calls.clear()
    trainer = trainer_of(definition_of(create_model))
    trainer.train_steps([batch_of(8)])
    trainer.state()

    (message,) = [each.getMessage() for each in caplog.records]
    assert name in message
    assert "not called here" in message
    assert not calls


calls = []


def clamp(*arguments):
    calls.append(arguments)


def test_methods_that_make_a_state_dict_are_reported(caplog):
    class Partial(nn.Linear):
        def state_dict(self, *arguments, **options):
            raise AssertionError

    trainer_of(definition_of(lambda: nn.Sequential(nn.ReLU(), Partial(4, 3))))

    (message,) = [each.getMessage() for each in caplog.records]
    assert "Partial.state_dict()" in message


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_hooks_of_libraries_for_the_state_dict_are_not_reported(caplog):
    def create_model():
        normed = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        normed.register_load_state_dict_post_hook(np.testing.assert_equal)
        return nn.Sequential(normed, nn.utils.spectral_norm(nn.Linear(4, 4)), nn.LazyLinear(3))

    trainer_of(definition_of(create_model))

    assert "state dict" not in caplog.text


# --- memory outside of the state dict ------------------------------------------------------------


def test_a_warning_does_not_hide_a_counter():
    class Counts(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.calls, self.original = 0, id(self)

        def forward(self, x):
            self.calls += 1
            if id(self) != self.original:
                # As an RNN on a GPU does in a copy. Warnings are errors in these tests.
                warnings.warn("The weights are not one piece of memory.", stacklevel=1)
            return super().forward(x) * self.calls

    with pytest.raises(DefinitionError, match="the attribute calls of the model changes"):
        trainer_of(definition_of(Counts))


class Remembering(nn.Module):
    """A layer that `remember` moves in training, given the module and its input."""

    def __init__(self, remember, **attributes):
        super().__init__()
        self.out, self.remember = nn.Linear(4, 3), remember
        self.register_buffer("cache", torch.zeros(1), persistent=False)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        if self.training:
            self.remember(self, x)
        return self.out(x)


def count(module, x):
    module.calls += 1


def carry(module, x):
    module.hidden = (module.hidden + x.mean(0)).detach()


def enqueue(module, x):
    module.queue.append(float(x[0, 0]))


def move_the_cache(module, x):
    module.cache += 1


def draw(module, x):
    torch.rand(1, generator=module.generator)


class Decay:
    """What a model asks for a number that gets smaller."""

    def __init__(self):
        self.value = 1.0

    def __call__(self):
        self.value *= 0.9
        return self.value


def ask(module, x):
    module.decay()


def add_a_twentieth(module, x):
    module.share += Fraction(1, 20)


@dataclass(slots=True)
class Slots:
    """State without a `__dict__`."""

    steps: int = 0


def count_in_a_slot(module, x):
    module.slots.steps += 1


def call_what_counts(module, x):
    module.compiled(x)


class CountsWhenCompiled(nn.Module):
    """Counts its calls, also once compiled; the counter is outside of Python's attributes then."""

    calls: int

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


def pull(module, x):
    next(module.numbers)


OUTSIDE = {
    "the attribute calls": (count, {"calls": 0}),
    "the attribute hidden": (carry, {"hidden": torch.zeros(4)}),
    "the attribute queue": (enqueue, {"queue": deque()}),
    "the buffer cache, which is not persistent,": (move_the_cache, {}),
    "the attribute generator": (draw, {"generator": torch.Generator()}),
    "the attribute decay": (ask, {"decay": Decay()}),
    "the attribute numbers": (pull, {"numbers": itertools.count()}),
    "the attribute share": (add_a_twentieth, {"share": Fraction(0)}),
    "the attribute slots": (count_in_a_slot, {"slots": Slots()}),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_unstorable_memory_is_refused_when_creating_the_trainer(what):
    remember, attributes = OUTSIDE[what]

    with pytest.raises(DefinitionError, match=f"model.py:1: {what} of the model changes with"):
        trainer_of(definition_of(lambda: Remembering(remember, **attributes)))


@pytest.mark.parametrize("zero", [np.int64(0), np.float32(0.0), Decimal(0), 0j])
def test_a_count_of_any_type_of_number_is_refused(zero):
    with pytest.raises(DefinitionError, match="the attribute calls of the model changes with"):
        trainer_of(definition_of(lambda: Remembering(count, calls=zero)))


def of_script_module():
    class Compiled(torch.jit.ScriptModule):
        calls: int

        def __init__(self):
            super().__init__()
            self.calls = 0

        @torch.jit.script_method
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    return Compiled()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "create", [lambda: torch.jit.script(CountsWhenCompiled()), of_script_module]
)
def test_an_attribute_of_a_compiled_layer_is_refused(create):
    def create_model():
        return Remembering(call_what_counts, compiled=create())

    with pytest.raises(DefinitionError, match="the attribute compiled.calls of the model changes"):
        trainer_of(definition_of(create_model))


class NeedsFour(nn.Linear):
    """Fails on pairs of examples."""

    def __init__(self, keeps):
        super().__init__(4, 3)
        self.calls, self.keeps = 0, keeps

    def forward(self, x):
        if self.training and len(x) % 4:
            raise ValueError("statistics need four examples")
        self.calls += self.keeps
        return super().forward(x) * (1 + self.calls)


def test_a_model_that_fails_on_pairs_is_tried_on_as_many_as_in_a_minibatch(caplog):
    with pytest.raises(DefinitionError, match="the attribute calls of the model changes with"):
        trainer_of(definition_of(lambda: NeedsFour(keeps=True)))
    trainer_of(definition_of(lambda: NeedsFour(keeps=False))).train_steps([batch_of(8)])

    assert not caplog.records


def test_a_module_without_values_in_an_attribute_hides_no_counter():
    def create_model():
        # As the base of an ensemble (`torch.func.functional_call`), which is no layer.
        return Remembering(count, calls=0, base=[nn.Linear(4, 3, device="meta")])

    with pytest.raises(DefinitionError, match="the attribute calls of the model changes with"):
        trainer_of(definition_of(create_model))


class NoCopy:
    def __init__(self):
        self.lock = threading.Lock()

    def __deepcopy__(self, memo):
        raise TypeError("one of a kind")


def test_a_model_that_cannot_be_copied_is_trained_with_a_warning(caplog):
    trainer = trainer_of(definition_of(lambda: Remembering(lambda m, x: None, own=NoCopy())))
    trainer.train_steps([batch_of(8)] * 2)

    (message,) = [each.getMessage() for each in caplog.records]
    assert "model.py:1: it is unknown whether the model keeps values that no checkpoint" in message
    assert "the model cannot be copied (TypeError: one of a kind)" in message


def count_under_a_lock(module, x):
    with module.lock:
        module.calls += 1


def test_a_lock_or_a_log_file_does_not_hide_a_counter(tmp_path, caplog):
    with (tmp_path / "log").open("w") as file:
        beside = {"lock": threading.Lock(), "file": file}

        def create_model():
            return Remembering(count_under_a_lock, calls=0, **beside)

        with pytest.raises(DefinitionError, match="the attribute calls of the model changes"):
            trainer_of(definition_of(create_model))
        trainer_of(definition_of(lambda: Remembering(lambda m, x: None, calls=0, **beside)))

    assert not caplog.records


class LayerLocal(nn.Module):
    """A layer that learns in `forward`, by an optimizer of its own."""

    def __init__(self, make, *, within=None):
        super().__init__()
        self.body, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
        made = make(self.body.parameters())
        self.local = within(made) if within else made
        self.mine = [made]

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        if self.training:
            hidden.pow(2).mean().backward()
            self.mine[0].step()
        return self.out(hidden.detach())


def adam(parameters):
    return torch.optim.Adam(parameters, 0.03)


def schedule(parameters):
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD(parameters, 0.1), 2)


@pytest.mark.parametrize(
    ("make", "within"),
    [
        (adam, None),
        (adam, lambda made: [made]),
        # Deeper than other values are compared.
        (adam, lambda made: SimpleNamespace(parts=[{"local": made}])),
        (schedule, None),
    ],
)
def test_an_optimizer_or_a_schedule_that_forward_steps_is_refused(make, within):
    what = r"the attribute local of the model changes with every call of `forward`.*`optimizer`"
    with pytest.raises(DefinitionError, match=what):
        trainer_of(definition_of(lambda: LayerLocal(make, within=within)))


def test_an_optimizer_without_state_may_be_stepped_by_forward():
    trainer_of(definition_of(lambda: LayerLocal(sgd)))


def scale_a_loss(module, x):
    module.scaler.scale(torch.ones(1))
    module.scaler.update(2.0 * module.scaler.get_scale())


def draw_sobol(module, x):
    module.engine.draw(len(x))


class Lines:
    """An iterator that cannot be copied, and whose state cannot be read."""

    __slots__ = ("_next",)

    def __init__(self):
        self._next = iter(range(100)).__next__

    def __iter__(self):
        return self

    def __next__(self):
        return self._next()

    def __reduce_ex__(self, protocol):
        raise TypeError


STEPPED = {
    "scaler": (scale_a_loss, lambda: torch.amp.GradScaler("cpu")),
    "engine": (draw_sobol, lambda: torch.quasirandom.SobolEngine(2)),
    "generator": (lambda m, x: next(m.generator), lambda: (1.0 for _ in itertools.count())),
    "same": (lambda m, x: next(m.same), lambda: (1.0 for _ in [1, 1, 1, 1, 1, 1, 1, 1])),
    "several": (lambda m, x: next(m.several[0]), lambda: [(n for n in range(100))]),
    "cycle": (lambda m, x: next(m.cycle), lambda: itertools.cycle([1.0, 2.0, 3.0])),
    "pairs": (
        lambda m, x: next(m.pairs),
        lambda: zip(itertools.cycle([1.0]), (n for n in range(100)), strict=False),
    ),
    "lines": (lambda m, x: next(m.lines), Lines),
    "loaded": (
        lambda m, x: next(m.loaded),
        lambda: iter(torch.utils.data.DataLoader(torch.arange(100.0))),
    ),
}


@pytest.mark.parametrize("name", STEPPED)
def test_a_library_object_that_changes_in_forward_is_refused(name):
    remember, make = STEPPED[name]

    with pytest.raises(DefinitionError, match=f"the attribute {name} of the model changes with"):
        trainer_of(definition_of(lambda: Remembering(remember, **{name: make()})))


@pytest.mark.parametrize("name", STEPPED)
def test_a_library_object_unused_in_forward_is_accepted(name):
    _, make = STEPPED[name]

    trainer_of(definition_of(lambda: Remembering(lambda m, x: None, **{name: make()})))


def test_an_object_that_cannot_be_copied_does_not_hide_a_counter():
    def model():
        made = Remembering(count, calls=0, rows=(n for n in range(3)))
        made.out = nn.utils.weight_norm(made.out)
        return made

    with (
        pytest.warns(FutureWarning, match="weight_norm"),
        pytest.raises(DefinitionError, match="the attribute calls of the model changes"),
    ):
        trainer_of(definition_of(model))


def test_an_iterator_created_in_each_call_is_accepted():
    def restart(module, x):
        module.rows = (row for row in x)
        module.pairs = zip(range(10**12), itertools.cycle([1.0]), strict=False)
        next(module.rows), next(module.pairs)

    trainer_of(definition_of(lambda: Remembering(restart, rows=None, pairs=None)))


CALLS = 0


class CountsInItsFile(nn.Linear):
    def forward(self, x):
        global CALLS  # noqa: PLW0603 - that is what is tried
        CALLS += 1
        return super().forward(x) * min(1.0, CALLS / 1e6)


class CountsInItsClass(nn.Linear):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x) * min(1.0, self.calls / 1e6)


def with_a_closure_that_counts():
    calls = 0

    class CountsInAClosure(nn.Linear):
        def forward(self, x):
            nonlocal calls
            calls += 1
            return super().forward(x) * min(1.0, calls / 1e6)

    return CountsInAClosure(4, 3)


class CountsInADefault(nn.Linear):
    def forward(self, x, calls=[0]):  # noqa: B006 - that is what is tried
        calls[0] += 1
        return super().forward(x) * min(1.0, calls[0] / 1e6)


def with_a_hook_that_counts():
    calls = 0

    def scaled(module, given, output):
        nonlocal calls
        calls += 1
        return output * min(1.0, calls / 10)

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].register_forward_hook(scaled)
    return model


@pytest.mark.parametrize(
    ("create_model", "what"),
    [
        (
            lambda: CountsInItsFile(4, 3),
            r"the variable CALLS, which CountsInItsFile.forward \(.*\) uses,",
        ),
        (lambda: CountsInItsClass(4, 3), "the class attribute CountsInItsClass.calls"),
        (
            with_a_closure_that_counts,
            r"the variable calls of a function, which CountsInAClosure.forward \(.*\) uses,",
        ),
        (
            lambda: CountsInADefault(4, 3),
            r"a default value of an argument of CountsInADefault.forward \(.*\)",
        ),
        (with_a_hook_that_counts, "the state of the forward hooks of 1"),
    ],
)
def test_memory_beside_the_model_is_refused_too(create_model, what):
    with pytest.raises(DefinitionError, match=f"{what} changes with every call"):
        trainer_of(definition_of(create_model))


class CountingLoss(nn.CrossEntropyLoss):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, output, label):
        self.calls += 1
        return super().forward(output, label) * min(1.0, self.calls / 10)


def counting_loss():
    calls = 0

    def loss(outputs, labels):
        nonlocal calls
        calls += 1
        return nn.functional.cross_entropy(outputs, labels) * min(1.0, calls / 10)

    return loss


SEEN = []


class NotesInItsFile(nn.Linear):
    def forward(self, x):
        SEEN.append(float(x.mean()))
        return super().forward(x)


def noting_loss(outputs, labels):
    computed = nn.functional.cross_entropy(outputs, labels)
    SEEN.append(float(computed))
    return computed


def test_changes_without_effect_on_results_are_accepted():
    trainer_of(definition_of(lambda: NotesInItsFile(4, 3), loss=noting_loss))


@pytest.mark.parametrize("loss", [CountingLoss(), counting_loss()])
def test_a_loss_that_remembers_its_calls_is_refused(loss):
    with pytest.raises(DefinitionError, match="the loss keeps state that changes with"):
        trainer_of(definition_of(loss=loss))


class Listed(nn.Module):
    """Has its layers in a list as well, and an object that knows the model."""

    def __init__(self):
        super().__init__()
        self.out, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(4)
        self.steps = [self.norm, self.out]
        self.log = logging.getLogger(__name__)
        self.owner = SimpleNamespace(model=self)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += self.training
        for step in self.steps:
            x = step(x)
        self.log.debug("called")
        return x


def test_state_dict_entries_may_also_be_attributes():
    trainer_of(definition_of(Listed))


def fill_the_cache(module, x):
    module.cache = x.detach().mean(0)
    module.last_output = module.out(x).detach()
    module.noise = torch.rand(3)


def test_values_recomputed_in_each_call_are_accepted():
    made = []

    def model():
        made.append(Remembering(fill_the_cache, last_output=None, noise=None))
        return made[-1]

    trainer_of(definition_of(model))

    # Looking leaves no trace in the model itself.
    assert made[0].last_output is None


# --- where gradients are summed ------------------------------------------------------------------


def with_parameter_hook():
    model = nn.Linear(4, 3)
    model.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return model


def with_post_accumulate_hook():
    def clamp(parameter):
        parameter.grad.clamp_(-0.01, 0.01)

    model = nn.Linear(4, 3)
    model.weight.register_post_accumulate_grad_hook(clamp)
    return model


def with_module_hook():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].register_full_backward_hook(lambda m, i, o: (i[0] * 2,))
    return model


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (with_parameter_hook, "the parameter weight has a hook on its gradient"),
        (with_post_accumulate_hook, "the parameter weight has a hook on its gradient"),
        (with_module_hook, "1 has a backward hook"),
    ],
)
def test_a_gradient_hook_is_refused_if_gradients_are_summed(model, what):
    trainer = trainer_of(definition_of(model))
    trainer.train_steps([batch_of(8)])

    with pytest.raises(DefinitionError, match=rf"test_refusals\.py:\d+: {what}"):
        trainer.gradients(batch_of(8))


def with_max_norm():
    class Ids(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(9, 4, max_norm=0.5), nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.table((x[:, 0].abs() * 4).long().clamp(max=8)))

    return Ids()


def with_an_average():
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)
            self.average = torch.optim.swa_utils.AveragedModel(self.inner)
            self.average.requires_grad_(requires_grad=False)

        def forward(self, x):
            if not self.training:
                return self.average(x)
            self.average.update_parameters(self.inner)
            return self.inner(x)

    return Averaging()


def with_act_norm():
    class ActNorm(nn.Module):
        """Its first call sets its scale, as in Glow, in a way that PyTorch does not count."""

        def __init__(self):
            super().__init__()
            self.scale, self.out = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)
            self.register_buffer("is_set", torch.zeros((), dtype=torch.bool))

        def forward(self, x):
            if not self.is_set and self.training:
                self.scale.data.copy_(1 / (x.std(0) + 1e-3))
                self.is_set.fill_(True)
            return self.out(x * self.scale)

    return ActNorm()


def with_a_clamp():
    class Clamped(nn.Linear):
        def forward(self, x):
            self.weight.data.clamp_(-0.1, 0.1)
            return super().forward(x)

    return Clamped(4, 3)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (with_a_clamp, "weight.* after each update, with optimizer.register_step_post_hook"),
        (with_max_norm, "table.weight"),
        (with_an_average, "average.module.weight"),
        (with_act_norm, "scale"),
    ],
)
def test_a_parameter_written_in_forward_is_refused_on_workers(model, name):
    trainer_of(definition_of(model)).train_steps([batch_of(8)])

    with pytest.raises(DefinitionError, match=f"changes its parameter {name}"):
        trainer_of(definition_of(model)).gradients(batch_of(8))


class CountsInFloat(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.count = self.count + 0.5
        return super().forward(x)


def growing_optimizer(parameters):
    optimizer = sgd(parameters)

    def grow(optimizer, *_):
        (weight, bias) = optimizer.param_groups[0]["params"]
        weight.data, bias.data = torch.zeros(6, 4), torch.zeros(6)

    optimizer.register_step_post_hook(grow)
    return optimizer


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (
            {"create_model": CountsInFloat},
            r"`forward` or the loss\) changed the model's buffer count from int64\[\] to float32",
        ),
        (
            {"optimizer": growing_optimizer},
            r"hooks, changed the model's parameter weight from float32\[3, 4\] to float32\[6, 4\]",
        ),
    ],
)
@pytest.mark.parametrize("on_workers", [False, True])
def test_a_step_that_changes_a_shape_or_dtype_is_refused(more, what, on_workers):
    trainer = trainer_of(definition_of(**more))

    with pytest.raises(DefinitionError, match=what):
        if on_workers:
            trainer.apply(trainer.gradients(batch_of(8))[0])
        else:
            trainer.train_steps([batch_of(8)])


def test_freezing_a_parameter_during_training_is_refused():
    class Freezes(nn.Linear):
        def forward(self, x):
            if self.training and x[0, 0] == 7:
                self.bias.requires_grad_(False)
            return super().forward(x)

    trainer, seven = trainer_of(definition_of(lambda: Freezes(4, 3))), batch_of(8)
    trainer.train_steps([batch_of(8)])
    seven.features[0, 0] = 7

    with pytest.raises(DefinitionError, match="requires_grad of bias became False in a step"):
        trainer.train_steps([seven])


# --- what is not refused -------------------------------------------------------------------------


class FrozenNorm(nn.Module):
    """Keeps its BatchNorm in evaluation mode, as in transfer learning."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.out(self.norm(x))


def weight_norm():
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))


def old_weight_norm():
    return nn.utils.weight_norm(nn.Linear(4, 3))


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    return model


def partly_frozen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(requires_grad=False)
    return model


def hooked():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].register_forward_hook(lambda module, args, output: output.tanh())
    return model


def masked():
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0, 0.0]))

        def forward(self, x):
            return super().forward((x + self.mask).softmax(1))

    return Masked()


def checkpointed():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.out(torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False))

    return Checkpointed()


def autocast():
    class Mixed(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    return Mixed(4, 3)


def recurrent():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.out = nn.LSTM(2, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x):
            return self.out(self.inner(x.unflatten(1, (2, 2)))[0][:, -1])

    return Recurrent()


def attention():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.inner(x.unsqueeze(1).repeat(1, 3, 1)).mean(1))

    return Attention()


MODELS = {
    "a module in evaluation mode": FrozenNorm,
    "attention": attention,
    "autocast to bfloat16": autocast,
    "bfloat16": lambda: nn.Sequential(_ToBfloat16(), nn.Linear(4, 3).bfloat16()),
    "compiled": lambda: torch.compile(nn.Linear(4, 3), backend="eager"),
    "DataParallel": lambda: nn.DataParallel(nn.Linear(4, 3)),
    "double": lambda: nn.Sequential(_ToDouble(), nn.Linear(4, 3).double()),
    "forward hook": hooked,
    "frozen parameters": partly_frozen,
    "gradient checkpointing": checkpointed,
    "group norm": lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Linear(4, 3)),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3)),
    "LSTM": recurrent,
    "mask of -inf": masked,
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
    "tied parameters": tied,
    "weight norm": weight_norm,
}


class _ToBfloat16(nn.Module):
    def forward(self, x):
        return x.bfloat16()


class _ToDouble(nn.Module):
    def forward(self, x):
        return x.double()


@pytest.mark.parametrize("name", MODELS)
def test_modules_train_as_in_a_plain_loop(name):
    definition, some = definition_of(MODELS[name]), [batch_of(12, seed) for seed in range(4)]
    # Gradients in bfloat16 are rounded batch by batch.
    assert_parity(definition, some, atol=4e-3 if "bfloat16" in name else 1e-6)

    whole, first, second = (trainer_of(definition) for _ in "123")
    whole.train_steps(some)
    first.train_steps(some[:2])
    second.load_state(first.state())
    second.train_steps(some[2:])
    assert same_bits(whole.state(), second.state())


# --- what a model names --------------------------------------------------------------------------


class Naming(nn.Module):
    """A body and a head; `named` says which parameters an optimizer is given."""

    def __init__(self, named, method):
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("steps", torch.zeros(()))
        setattr(type(self), method, lambda self, *_, **__: named(self))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return self.head(torch.relu(self.body(x)))


def naming(named, method="parameters"):
    """Return what makes a model of a class of its own."""
    kind = type("Naming", (Naming,), {"__init__": Naming.__init__})
    return lambda: kind(named, method)


def head_parameters(model):
    return model.head.parameters()


def named_head_parameters(model):
    return model.head.named_parameters()


@pytest.mark.parametrize(
    ("named", "method"),
    [(head_parameters, "parameters"), (named_head_parameters, "named_parameters")],
)
def test_a_model_may_select_its_parameters_as_in_a_plain_loop(named, method):
    kind = naming(named, method)
    definition = definition_of(kind, optimizer=lambda given: torch.optim.SGD(given, 0.1, 0.9))
    trainer = trainer_of(definition)
    begun = trainer.state()
    trainer.train_steps([batch_of(8)])
    ended = trainer.state()

    assert_parity(definition, [batch_of(8, seed) for seed in range(3)])
    for name in ("model/body.weight", "model/body.bias"):
        assert begun[name].tobytes() == ended[name].tobytes()
    assert begun["model/head.weight"].tobytes() != ended["model/head.weight"].tobytes()


@pytest.mark.parametrize(
    ("named", "what"),
    [
        (lambda model: [{"params": model.head.parameters()}], "a dict that is not a parameter"),
        (lambda model: [nn.Parameter(torch.zeros(1))], "a Parameter that is not a parameter"),
        (lambda model: [model.head.bias, model.head.bias], "a parameter twice"),
    ],
)
def test_foreign_parameters_are_refused_with_their_line(named, what):
    with pytest.raises(DefinitionError, match=rf"{__file__}:\d+: parameters\(\) of .* {what}"):
        trainer_of(definition_of(naming(named)))


def test_buffers_hidden_by_a_custom_state_dict_are_kept():
    kind = naming(lambda model: {"head.bias": model.head.bias}, "state_dict")

    assert "model/steps" in trainer_of(definition_of(kind)).state()


# --- what evaluation changes ---------------------------------------------------------------------


class Changing(nn.Module):
    """A model that `change` changes in each call, given the model and its input."""

    def __init__(self, change):
        super().__init__()
        self.inner, self.change = nn.Linear(4, 3), change
        self.register_buffer("total", torch.full((4,), float("nan")))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.change(self, x)
        return self.inner(x + self.seen)


def add_to_buffer(model, x):
    model.seen += x.detach().sum(0)


def replace_buffer(model, x):
    model.seen = model.seen + x.detach().sum(0)


def clamp_weights(model, _x):
    model.inner.weight.data.clamp_(-0.01, 0.01)


def write_the_same(model, _x):
    model.seen.copy_(model.seen.clone())
    model.total.mul_(1.0)


def add_in_training(model, x):
    if model.training:
        add_to_buffer(model, x)


EVALUATIONS = {
    "evaluate": lambda trainer: trainer.evaluate(batch_of(8)),
    "evaluate_per_example": lambda trainer: trainer.evaluate_per_example(batch_of(8)),
    "predict": lambda trainer: trainer.predict(batch_of(8).features),
    "check_evaluation": lambda trainer: trainer.check_evaluation(batch_of(8)),
}


@pytest.mark.parametrize("name", EVALUATIONS)
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (add_to_buffer, r"Changing \(the model\) changes its seen"),
        (replace_buffer, r"Changing \(the model\) changes its seen"),
        (clamp_weights, r"Linear \(inner\) changes its weight"),
    ],
)
def test_a_module_that_changes_itself_in_evaluation_is_refused(change, what, name):
    trainer = trainer_of(definition_of(lambda: Changing(change)))
    trainer.train_steps([batch_of(8)])
    with torch.no_grad():
        trainer.model.inner.weight.mul_(3.0)
    before = trainer.state()

    for _ in "12":
        with pytest.raises(
            DefinitionError, match=rf":\d+: {what} where it is called in evaluation"
        ):
            EVALUATIONS[name](trainer)

    assert same_bits(before, trainer.state())


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_change_in_evaluation_is_detected_beside_a_sparse_buffer(layout):
    class Near(Changing):
        def __init__(self):
            super().__init__(add_to_buffer)
            self.register_buffer("near", torch.eye(4).to_sparse(layout=layout))

    trainer = trainer_of(definition_of(Near))

    with pytest.raises(DefinitionError, match=r"Near \(the model\) changes its seen"):
        trainer.check_evaluation(batch_of(8))


@pytest.mark.parametrize("change", [write_the_same, add_in_training])
def test_a_module_that_changes_itself_only_in_training_is_evaluated(change):
    trainer = trainer_of(definition_of(lambda: Changing(change)))
    trainer.train_steps([batch_of(8)])

    for call in EVALUATIONS.values():
        call(trainer)


def test_a_changing_buffer_is_not_mistaken_for_mixed_examples():
    def jump(model, _x):
        model.seen.copy_(torch.where(model.seen < 0.0015, model.seen + 0.001, 10.0))

    trainer = trainer_of(definition_of(lambda: Changing(jump)))

    assert trainer.gradients(batch_of(8))[0].num_examples == 8


# --- changes of what a model consists of ---------------------------------------------------------


def test_a_hook_of_the_optimizer_that_prunes_is_refused():
    made = []

    def create_model():
        made.append(nn.Linear(4, 3))
        return made[-1]

    def prunes_in_a_hook(parameters):
        stepped, model = sgd(parameters), made[-1]
        stepped.register_step_post_hook(lambda *_: prune.random_unstructured(model, "weight", 0.3))
        return stepped

    trainer = trainer_of(definition_of(create_model, optimizer=prunes_in_a_hook))

    with pytest.raises(DefinitionError, match="weight is gone, weight_orig is new, weight_mask"):
        trainer.train_steps([batch_of(8)])


def test_a_hook_of_the_optimizer_that_changes_a_group_is_refused():
    def appends_in_a_hook(parameters):
        weight, bias = parameters
        stepped = sgd([weight])
        group = stepped.param_groups[0]["params"]
        stepped.register_step_post_hook(lambda *_: group.append(bias))
        return stepped

    trainer = trainer_of(definition_of(optimizer=appends_in_a_hook))

    with pytest.raises(DefinitionError, match="group 0 of the optimizer no longer has the param"):
        trainer.train_steps([batch_of(8)])


class ReplacesItsWeight(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.steps += 1
            if self.steps == 3:
                self.weight = nn.Parameter(self.weight.detach() * 0.5)
        return super().forward(x)


def test_a_parameter_that_forward_replaces_is_refused_at_the_next_checkpoint():
    trainer = trainer_of(definition_of(ReplacesItsWeight))
    trainer.train_steps([batch_of(8), batch_of(8)])
    trainer.state()
    trainer.train_steps([batch_of(8)])

    with pytest.raises(DefinitionError, match="weight is another object"):
        trainer.state()


class MeanOfTheFirst(nn.Linear):
    """Sets a buffer that is None in its first call, in training only or in any mode."""

    def __init__(self, *, only_in_training):
        super().__init__(4, 3)
        self.register_buffer("mean", None)
        self.only_in_training = only_in_training

    def forward(self, x):
        if self.mean is None and (self.training or not self.only_in_training):
            self.mean = x.detach().mean(0)
        return super().forward(x if self.mean is None else x - self.mean)


def test_a_buffer_that_is_none_until_the_first_batch_is_refused():
    with pytest.raises(DefinitionError, match="the buffer mean of the model is None until"):
        trainer_of(definition_of(lambda: MeanOfTheFirst(only_in_training=False)))


def test_a_buffer_that_is_none_until_the_first_training_step_is_refused():
    trainer = trainer_of(definition_of(lambda: MeanOfTheFirst(only_in_training=True)))

    with pytest.raises(DefinitionError, match="mean is new"):
        trainer.train_steps([batch_of(8)])


class Positions(nn.Linear):
    """Keeps a buffer that depends on the shape of its input only."""

    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("positions", None)
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x):
        if self.positions is None:
            self.positions = torch.arange(x.shape[1]) / 10
        return super().forward(self.norm(x) + self.positions)


def test_a_buffer_that_depends_on_the_shape_only_may_be_none_at_first():
    trainer = trainer_of(definition_of(Positions))
    trainer.train_steps([batch_of(8)])

    assert "model/positions" in trainer.state()


def count_calls(module, given, output):
    return None


class CountsCalls:
    def __call__(self, module, given, output):
        return None


@pytest.mark.parametrize(
    ("register", "hook"),
    [
        (nn.modules.module.register_module_forward_hook, count_calls),
        (nn.modules.module.register_module_forward_pre_hook, lambda module, given: None),
        (nn.modules.module.register_module_full_backward_hook, CountsCalls()),
    ],
)
def test_a_hook_of_all_modules_is_refused_with_its_line(register, hook):
    code = getattr(hook, "__code__", None) or CountsCalls.__call__.__code__
    handle = register(hook)
    try:
        with pytest.raises(
            DefinitionError,
            match=f"{__file__}:{code.co_firstlineno}: .* is registered as a hook of all modules",
        ):
            trainer_of()
    finally:
        handle.remove()
        nn.modules.module._global_is_full_backward_hook = None


def test_a_hook_of_all_modules_of_a_library_is_accepted():
    with torch.utils.module_tracker.ModuleTracker():
        trainer_of()
