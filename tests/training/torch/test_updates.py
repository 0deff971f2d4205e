"""What an update is beside the optimizer: schedules, clipped gradients, averages, a scaled loss.

That they give the numbers of plain loops is in `tests/parity/torch/`; here is what they refuse, and
what goes wrong within them.
"""

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import (
    batch_of,
    definition_of,
    mean_loss,
    same_bits,
    total_of,
    trainer_of,
)
from tests.training.torch.plain import UNEVEN, cut
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from elasticdl.definition import GradientClipping
from elasticdl.errors import CheckpointMismatchError, DefinitionError, UserCodeError


def step_lr(optimizer):
    return lr_scheduler.StepLR(optimizer, 1)


class StepsWithEpoch:
    """Like the schedulers of timm: it has to be given the number of the epoch."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, epoch, metric=None):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def rate(trainer):
    return trainer.optimizer.param_groups[0]["lr"]


# --- schedules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (lambda o: None, "None, which is not a scheduler.*StepLR"),
        (lambda _: lr_scheduler.StepLR, r"the class StepLR, which is not.*StepLR\(optimizer, 30\)"),
        (
            lambda _: object(),
            "an object of object, which is not a scheduler.*with step.., state_dict.. and load_",
        ),
        (lambda o: o, "an object of SGD, which is not a scheduler.*Return the scheduler only"),
        (
            lambda o: ([o], [step_lr(o)]),
            "a tuple of a list and a list, which is not a scheduler.*the scheduler only",
        ),
        (StepsWithEpoch, r"step\(\) of StepsWithEpoch.*'epoch'"),
        (lambda o: {"scheduler": step_lr(o), "every": 2}, "'every' is not an option"),
        (lambda o: {"scheduler": step_lr(o), "interval": "batch"}, 'Expected "step" or "epoch"'),
        (lambda o: {"scheduler": step_lr(o), "frequency": 0}, "frequency is 0.*above 0"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, 9), 'OneCycleLR.*"interval": "step"'),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0), "CyclicLR usually steps after each update"),
        (
            lambda o: lr_scheduler.SequentialLR(
                o, [step_lr(o), lr_scheduler.OneCycleLR(o, 0.1, 9)], [1]
            ),
            "OneCycleLR usually steps after each update",
        ),
        (
            lambda o: {"scheduler": lr_scheduler.ReduceLROnPlateau(o), "interval": "step"},
            "measured once per epoch",
        ),
        (
            lambda _: step_lr(torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)),
            "for another optimizer",
        ),
    ],
)
def test_an_invalid_schedule_is_refused_before_training(returned, expected):
    with pytest.raises(DefinitionError, match=expected):
        trainer_of(definition_of(create_lr_schedulers=returned))


def test_a_schedule_with_a_stateful_function_is_refused():
    class Remembers:
        def __init__(self):
            self.thing = object()

        def __call__(self, step):
            return 1.0

    with pytest.raises(DefinitionError, match=r"LambdaLR keeps .*no checkpoint can store"):
        trainer_of(
            definition_of(
                create_lr_schedulers=lambda o: lr_scheduler.LambdaLR(o, Remembers()),
            )
        )


@pytest.mark.parametrize("monitored", ["loss", "loss_epoch"])
def test_a_plateau_accepts_lightning_metric_names(monitored):
    def plateau(optimizer):
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"scheduler": scheduler, "monitor": monitored}

    trainer = trainer_of(definition_of(create_lr_schedulers=plateau))
    before = rate(trainer)
    for epoch in range(2):
        trainer.hooks.epoch_end(epoch, {"loss": 1.0})

    assert rate(trainer) == before / 2


@pytest.mark.parametrize(
    ("monitor", "mode", "is_noted"),
    [
        ("val_accuracy", "min", True),
        ("f1", "min", True),
        ("val_accuracy", "max", False),
        ("val_loss", "min", False),
        ("speed", "min", False),
    ],
)
def test_a_plateau_that_takes_a_rising_accuracy_for_a_plateau_is_noted(
    monitor, mode, is_noted, caplog
):
    def plateau(optimizer):
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, mode)
        return {"scheduler": scheduler, "monitor": monitor}

    trainer = trainer_of(definition_of(create_lr_schedulers=plateau))
    trainer.hooks.train_begin(num_epochs=2, num_steps=2, resumes=False, num_updates=2)

    notes = [text for text in caplog.messages if "lowers the learning rate while" in text]
    assert len(notes) == is_noted
    assert all(f'ReduceLROnPlateau monitors {monitor!r} with mode="min"' in each for each in notes)


def test_a_plateau_without_validation_lists_measured_metrics():
    trainer = trainer_of(definition_of(create_lr_schedulers=lr_scheduler.ReduceLROnPlateau))

    with pytest.raises(DefinitionError, match="'val_loss', which was not measured in epoch 1"):
        trainer.hooks.epoch_end(0, {"loss": 1.0})


@pytest.mark.parametrize(
    ("monitor", "advice"),
    [
        ("accuracy", r"loss, val_accuracy\); did you mean 'val_accuracy'\?$"),
        ("val_acc", r"did you mean 'val_accuracy'\? Monitor one that is measured\.$"),
        ("speed", r"val_accuracy\)\. Monitor one that is measured\.$"),
    ],
)
def test_a_plateau_after_a_validation_is_not_advised_to_have_one(monitor, advice):
    def plateau(optimizer):
        return {"scheduler": lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": monitor}

    trainer = trainer_of(definition_of(create_lr_schedulers=plateau))

    with pytest.raises(DefinitionError, match=advice):
        trainer.hooks.epoch_end(0, {"loss": 1.0, "val_accuracy": 0.5})


def test_a_schedule_may_step_every_second_epoch():
    trainer = trainer_of(
        definition_of(create_lr_schedulers=lambda o: {"scheduler": step_lr(o), "frequency": 2})
    )
    rates = []
    for epoch in range(4):
        trainer.train_steps([batch_of(8)])
        trainer.hooks.epoch_end(epoch, {"loss": 1.0})
        rates.append(rate(trainer))

    np.testing.assert_allclose(rates, [0.1, 0.01, 0.01, 0.001])


def test_a_checkpoint_of_another_number_of_schedules_is_refused():
    state = trainer_of(definition_of(create_lr_schedulers=step_lr)).state()

    with pytest.raises(CheckpointMismatchError, match="lr_scheduler/1 in the checkpoint, 0 in the"):
        trainer_of().load_state(state)


def test_a_checkpoint_of_another_kind_of_schedule_is_refused():
    state = trainer_of(definition_of(create_lr_schedulers=step_lr)).state()
    cosine = definition_of(create_lr_schedulers=lambda o: lr_scheduler.CosineAnnealingLR(o, 9))

    with pytest.raises(CheckpointMismatchError, match="0: StepLR in the checkpoint, CosineAnn"):
        trainer_of(cosine).load_state(state)


def test_errors_of_a_schedule_are_user_code_errors():
    def fail(count):
        return 1 / (2 - count)

    trainer = trainer_of(
        definition_of(
            create_lr_schedulers=lambda o: {
                "scheduler": lr_scheduler.LambdaLR(o, fail),
                "interval": "step",
            }
        )
    )
    trainer.train_steps([batch_of(8)])

    with pytest.raises(UserCodeError, match=r"test_updates.py:\d+.*LambdaLR raised"):
        trainer.train_steps([batch_of(8)])


def test_a_function_that_raises_beside_a_onecyclelr_that_has_ended_is_reported():
    def schedulers(optimizer):
        one = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2)
        fails = lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (2 - step))
        return {"scheduler": lr_scheduler.ChainedScheduler([one, fails]), "interval": "step"}

    trainer = trainer_of(definition_of(create_lr_schedulers=schedulers))
    trainer.train_steps([batch_of(8)])

    with pytest.raises(UserCodeError, match=r"(?s)test_updates.py:\d+.*ZeroDivisionError"):
        trainer.train_steps([batch_of(8)])


def test_a_schedule_that_is_too_short_states_the_required_length():
    trainer = trainer_of(
        definition_of(
            create_lr_schedulers=lambda o: {
                "scheduler": lr_scheduler.OneCycleLR(o, 0.1, total_steps=2),
                "interval": "step",
            }
        )
    )

    with pytest.raises(
        DefinitionError,
        match=r"lr_scheduler\(\): OneCycleLR has 2 steps, and the training makes more",
    ):
        for _ in range(4):
            trainer.train_steps([batch_of(8)])


def test_a_schedule_that_is_too_short_keeps_its_last_rate_if_the_number_of_updates_is_unknown(
    caplog,
):
    def create():
        return trainer_of(
            definition_of(
                create_lr_schedulers=lambda o: {
                    "scheduler": lr_scheduler.OneCycleLR(o, 0.1, total_steps=3),
                    "interval": "step",
                }
            )
        )

    def train(trainer, num_steps, *, resumes=False):
        trainer.hooks.train_begin(num_epochs=3, num_steps=2, resumes=resumes, num_updates=None)
        for _ in range(num_steps):
            trainer.train_steps([batch_of(8)])

    trainer = create()
    train(trainer, 3)
    assert caplog.messages == []
    train(trainer, 3, resumes=True)
    resumed = create()
    resumed.load_state(trainer.state())
    train(resumed, 3, resumes=True)

    first, second = caplog.messages
    assert first == second
    assert (
        "OneCycleLR has made all its 3 steps: from here on, it keeps its last learning rate, 4e"
        in first
    )
    assert "e-07" in first


def warm_up_and_one_cycle(optimizer):
    return lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=9),
            lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3),
            lr_scheduler.ConstantLR(optimizer, 0.25, total_iters=9),
        ],
        [2, 7],
    )


def one_cycle_in_a_chain(optimizer):
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)], optimizer
    )


@pytest.mark.parametrize("resumed_after", [None, 3, 5])
def test_a_onecyclelr_in_a_sequentiallr_is_held_until_the_next_milestone(caplog, resumed_after):
    def create():
        definition = definition_of(
            create_lr_schedulers=lambda o: {
                "scheduler": warm_up_and_one_cycle(o),
                "interval": "step",
            },
        )
        trainer = trainer_of(definition)
        trainer.hooks.train_begin(num_epochs=5, num_steps=2, resumes=False, num_updates=None)
        return trainer

    trainer, rates = create(), []
    for number in range(9):
        if number == resumed_after:
            resumed = create()
            resumed.load_state(trainer.state())
            trainer = resumed
        trainer.train_steps([batch_of(8)])
        rates.append(float(trainer.optimizer.param_groups[0]["lr"]))

    lowest = 0.1 / 25 / 1e4
    assert rates[3:6] == pytest.approx([rates[3], lowest, lowest])
    assert rates[6:] == pytest.approx([rates[6]] * 3)
    assert rates[6] > rates[3] / 10
    assert len(caplog.messages) == (1 if resumed_after != 5 else 0)


def test_a_onecyclelr_in_a_chain_keeps_its_last_rate(caplog):
    trainer = trainer_of(
        definition_of(
            create_lr_schedulers=lambda o: {
                "scheduler": one_cycle_in_a_chain(o),
                "interval": "step",
            }
        )
    )
    trainer.hooks.train_begin(num_epochs=5, num_steps=2, resumes=False, num_updates=None)

    for _ in range(10):
        trainer.train_steps([batch_of(8)])

    rate = float(trainer.optimizer.param_groups[0]["lr"])
    assert rate == pytest.approx(0.1 / 25 / 1e4)
    assert "has made all its 5 steps" in caplog.text


@pytest.mark.parametrize(
    ("create", "num_updates", "problem"),
    [
        (one_cycle_in_a_chain, 6, "OneCycleLR has 5 steps, and the training makes 6 updates. Set"),
        (
            warm_up_and_one_cycle,
            9,
            "has 3 steps, and the training makes 9 updates, which take 4 of its steps. Set total",
        ),
    ],
)
def test_a_onecyclelr_in_another_scheduler_that_is_too_short_is_refused_before_the_first_step(
    create, num_updates, problem
):
    trainer = trainer_of(
        definition_of(
            create_lr_schedulers=lambda o: {"scheduler": create(o), "interval": "step"},
        )
    )

    def begin(num_updates):
        trainer.hooks.train_begin(
            num_epochs=1, num_steps=num_updates, resumes=False, num_updates=num_updates
        )

    begin(5)
    with pytest.raises(DefinitionError, match=problem):
        begin(num_updates)


def test_a_schedule_that_a_callback_may_cut_short_fails_with_the_required_length():
    class Log:
        def on_epoch_end(self, epoch, logs):
            pass

    trainer = trainer_of(
        definition_of(
            create_lr_schedulers=lambda o: {
                "scheduler": warm_up_and_one_cycle(o),
                "interval": "step",
            },
            create_callbacks=lambda: [Log()],
        )
    )
    trainer.hooks.train_begin(num_epochs=1, num_steps=9, resumes=False, num_updates=9)

    with pytest.raises(
        DefinitionError, match="which take 4 of its steps. Set total_steps=4"
    ) as error:
        for _ in range(9):
            trainer.train_steps([batch_of(8)])
    assert "Set total_steps=4 and choose another --output (a resumed training" in str(error.value)


def one_cycle_by_epoch(total_steps, frequency=1):
    return lambda o: {
        "scheduler": lr_scheduler.OneCycleLR(o, 0.1, total_steps=total_steps),
        "interval": "epoch",
        "frequency": frequency,
    }


@pytest.mark.parametrize(
    ("create", "num_epochs", "problem"),
    [
        (
            one_cycle_by_epoch(3),
            4,
            "3 steps and steps after each epoch, and the training has 4 epochs. Set total_steps=4,",
        ),
        (
            one_cycle_by_epoch(3, frequency=2),
            8,
            "has 3 steps, and the training has 8 epochs, which take 4 of its steps. Set total_st",
        ),
        (
            lambda o: {"scheduler": one_cycle_in_a_chain(o), "interval": "epoch"},
            6,
            r"the training has 6 epochs. Set total_steps=6,",
        ),
        (
            lambda o: {"scheduler": warm_up_and_one_cycle(o), "interval": "epoch"},
            6,
            r"the training has 6 epochs, which take 4 of its steps. Set total_steps=4,",
        ),
    ],
)
@pytest.mark.parametrize("num_updates", [100, None])
def test_a_onecyclelr_of_epochs_that_is_too_short_is_refused_before_the_first_step(
    create, num_epochs, problem, num_updates
):
    trainer = trainer_of(definition_of(create_lr_schedulers=create))

    def begin(num_epochs):
        trainer.hooks.train_begin(
            num_epochs=10,
            num_steps=10,
            resumes=False,
            num_updates=num_updates,
            num_full_epochs=num_epochs,
        )

    begin(num_epochs - 1)
    with pytest.raises(DefinitionError, match=problem):
        begin(num_epochs)


def by_update(create):
    return lambda o: {"scheduler": create(o), "interval": "step"}


@pytest.mark.parametrize(
    ("create", "num_updates", "num_epochs", "expected"),
    [
        (
            by_update(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40)),
            20,
            2,
            "makes 20 updates, so",
        ),
        (by_update(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40)), 38, 2, ""),
        (by_update(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40)), None, 2, ""),
        (by_update(step_lr), 20, 2, ""),
        (by_update(one_cycle_in_a_chain), 3, 1, "makes 3 updates, so"),
        # It has begun, but has not reached its milestone.
        (by_update(warm_up_and_one_cycle), 3, 1, "makes 3 updates, which take 1 of its steps, so"),
        (by_update(warm_up_and_one_cycle), 1, 1, ""),
        (one_cycle_by_epoch(4, frequency=2), 50, 5, "Set total_steps=2, or train longer."),
        (one_cycle_by_epoch(4), 50, None, ""),
        # --max_steps ends the first epoch.
        (one_cycle_by_epoch(4), 50, 0, ""),
    ],
)
def test_a_onecyclelr_that_does_not_reach_its_end_is_noted_at_the_beginning(
    create, num_updates, num_epochs, expected, caplog
):
    trainer = trainer_of(definition_of(create_lr_schedulers=create))

    for resumes in (True, False):
        assert caplog.messages == []
        trainer.hooks.train_begin(
            num_epochs=9,
            num_steps=9,
            resumes=resumes,
            num_updates=num_updates,
            num_full_epochs=num_epochs,
        )

    assert len(caplog.messages) == bool(expected)
    assert expected in caplog.text


def test_a_onecyclelr_of_epochs_keeps_its_last_rate_if_their_number_is_unknown(caplog):
    trainer = trainer_of(definition_of(create_lr_schedulers=one_cycle_by_epoch(3)))
    trainer.hooks.train_begin(num_epochs=5, num_steps=None, resumes=False)

    for epoch in range(5):
        trainer.train_steps([batch_of(8)])
        trainer.hooks.epoch_end(epoch, {})

    assert rate(trainer) == pytest.approx(0.1 / 25 / 1e4)
    assert "keeps its last learning rate, 4e-07. It steps after each epoch." in caplog.text


def test_a_resumed_schedule_that_is_too_short_is_that_of_the_checkpoint():
    def trainer_with(total_steps):
        return trainer_of(
            definition_of(
                create_lr_schedulers=lambda o: {
                    "scheduler": lr_scheduler.OneCycleLR(o, 0.1, total_steps=total_steps),
                    "interval": "step",
                }
            )
        )

    resumed = trainer_with(30)
    resumed.load_state(trainer_with(2).state())

    with pytest.raises(
        DefinitionError, match=r"makes 30 updates, and OneCycleLR has 2 steps in the checkpoint"
    ) as caught:
        resumed.hooks.train_begin(num_epochs=3, num_steps=10, resumes=True, num_updates=30)
    assert str(caught.value).endswith(
        "Train for fewer epochs, or start a new training: choose another --output."
    )
    with pytest.raises(DefinitionError, match="keeps the schedule of its checkpoint: for a longer"):
        for _ in range(4):
            resumed.train_steps([batch_of(8)])


def test_a_schedule_that_counts_updates_is_named():
    def schedule(interval):
        return lambda o: {
            "scheduler": lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
            "interval": interval,
        }

    def named(interval):
        definition = definition_of(create_lr_schedulers=schedule(interval))
        return trainer_of(definition).schedule_of_updates()

    assert named("step").endswith(": OneCycleLR")
    assert named("epoch") == ""


def test_a_schedule_that_is_too_short_is_refused_before_the_first_step():
    trainer = trainer_of(
        definition_of(
            create_lr_schedulers=lambda o: {
                "scheduler": lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
                "interval": "step",
            }
        )
    )

    def begin(num_updates):
        trainer.hooks.train_begin(num_epochs=3, num_steps=7, resumes=False, num_updates=num_updates)

    begin(None)
    begin(20)
    with pytest.raises(DefinitionError, match=r"has 20 steps, .* makes 21 updates.*total_steps=21"):
        begin(21)


# --- directions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maximizing", "resumes", "is_noted"),
    [
        ((True, False), False, True),
        ((True, False), True, False),
        ((True, True), False, False),
        ((False, False), False, False),
    ],
)
def test_groups_of_an_optimizer_that_move_the_loss_in_opposite_directions_are_noted(
    maximizing, resumes, is_noted, caplog
):
    def sgd(parameters):
        groups = zip(parameters, maximizing, strict=True)
        return torch.optim.SGD([{"params": [p], "maximize": each} for p, each in groups], 0.1)

    trainer = trainer_of(definition_of(optimizer=sgd))
    trainer.hooks.train_begin(num_epochs=2, num_steps=2, resumes=resumes, num_updates=2)

    notes = [text for text in caplog.messages if "set in 1 of 2 parameter groups" in text]
    assert len(notes) == is_noted


# --- clipping ------------------------------------------------------------------------------------


def test_gradients_are_clipped_after_summing_over_workers():
    definition = definition_of(gradient_clipping=GradientClipping("norm", 0.01))
    batch = batch_of(12)
    alone, *workers = (trainer_of(definition, batch) for _ in range(1 + len(UNEVEN)))
    before = alone.state()["model/weight"]

    alone.train_steps([batch])
    parts = zip(workers, cut(batch, *UNEVEN), strict=True)
    total = total_of(*(worker.gradients(part)[0] for worker, part in parts))
    for worker in workers:
        worker.apply(total)

    moved = alone.state()["model/weight"] - before
    assert 0 < np.abs(moved).max() <= 0.1 * 0.01
    np.testing.assert_allclose(workers[0].state()["model/weight"] - before, moved, rtol=1e-3)


def test_errors_of_a_clipping_function_are_user_code_errors():
    def clip(parameters):
        raise ValueError(f"of {len(parameters)} parameters")

    trainer = trainer_of(definition_of(gradient_clipping=clip))

    with pytest.raises(UserCodeError, match=r"gradient_clipping\(\) raised:(.|\n)*of 2 parameters"):
        trainer.train_steps([batch_of(8)])


def test_errors_of_a_clipping_function_are_reported_once():
    def clip(_):
        raise UserCodeError("m.py:3: gradient_clipping() raised:\n  ValueError: no")

    trainer = trainer_of(definition_of(gradient_clipping=clip))

    with pytest.raises(UserCodeError) as raised:
        trainer.train_steps([batch_of(8)])
    assert str(raised.value).count("gradient_clipping() raised") == 1


@pytest.mark.parametrize(
    "more",
    [{"gradient_clipping": GradientClipping("value", 0.5)}, {"create_lr_schedulers": step_lr}],
    ids=["gradient_clipping", "lr_scheduler"],
)
def test_update_settings_are_refused_for_parties_that_send_gradients(more):
    trainer = trainer_of(definition_of(**more))
    contribution, _ = trainer.gradients(batch_of(8))

    with pytest.raises(DefinitionError, match="is part of an update"):
        trainer.by_name(contribution)


# --- averages ------------------------------------------------------------------------------------


def ema(model):
    return swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))


def test_averages_are_evaluated_and_published_while_weights_train_on():
    batches = [batch_of(8, seed) for seed in range(4)]
    trainer, plain = trainer_of(definition_of(create_average=ema)), trainer_of()
    for some in (trainer, plain):
        some.train_steps(batches)
    weights = {k: v for k, v in trainer.state().items() if k.startswith("model/")}
    assert same_bits(weights, {k: plain.state()[k] for k in weights})

    measured = trainer.evaluate(batches[0])["loss"]
    assert measured != plain.evaluate(batches[0])["loss"]
    before = trainer.state()
    trainer.finish()
    assert trainer.evaluate(batches[0])["loss"] == measured
    assert not same_bits(weights, {k: trainer.state()[k] for k in weights})
    trainer.load_state(before)
    assert same_bits(trainer.state(), before)
    assert trainer.evaluate(batches[0])["loss"] == measured


def test_published_weights_are_evaluated_unchanged():
    """A trained model holds the averages as its weights, and nothing beside them."""
    batch = batch_of(8)
    trainer, other = (trainer_of(definition_of(create_average=ema), seed=n) for n in (0, 1))
    trainer.train_steps([batch])
    trainer.finish()
    weights = {k: v for k, v in trainer.state().items() if k.startswith("model/")}
    other.load_state({**other.state(), **weights})

    assert other.evaluate(batch)["loss"] == trainer.evaluate(batch)["loss"]


def test_averages_are_stored_whole_whatever_their_state_dict_contains():
    class Partial(nn.Linear):
        def state_dict(self, *arguments, **options):
            with torch.no_grad():
                self.weight.clamp_(-0.01, 0.01)
            return {}

    definition = definition_of(lambda: Partial(4, 3), create_average=ema)
    trainer = trainer_of(definition)
    trainer.train_steps([batch_of(8)])
    state = trainer.state()
    other = trainer_of(definition, seed=1)
    other.load_state(state)

    assert same_bits(other.state(), state)
    assert any(abs(each).max() > 0.01 for name, each in state.items() if "weight" in name)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda model: model, "it returned a Linear"),
        (lambda _: ema(nn.Linear(2, 2)), "the shapes of its weights differ"),
        (lambda _: None, "it returned a NoneType"),
    ],
)
def test_an_invalid_average_of_the_model_is_refused(make, expected):
    with pytest.raises(DefinitionError, match=rf"averaged_model\(\): .*{expected}.*AveragedModel"):
        trainer_of(definition_of(create_average=make))


class Counting(swa_utils.AveragedModel):
    """Averages after every third update."""

    def __init__(self, model, count):
        super().__init__(model, use_buffers=True)
        count(self)

    def update_parameters(self, model):
        if self.calls % 3 == 0:
            super().update_parameters(model)
        self.calls += 1


def in_attribute(average):
    average.calls = 0


def in_buffer(average, *, persistent=True):
    average.register_buffer("calls", torch.tensor(0), persistent=persistent)


def in_passing_buffer(average):
    in_buffer(average, persistent=False)


class Follow:
    """An average that follows more slowly with each call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, average, value, number):
        self.calls += 1
        return average + (value - average) / self.calls


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda model: Counting(model, in_attribute), "calls"),
        (lambda model: swa_utils.AveragedModel(model, avg_fn=Follow()), "avg_fn"),
    ],
)
def test_an_average_with_unstorable_state_is_refused(make, name):
    trainer = trainer_of(definition_of(create_average=make))

    with pytest.raises(DefinitionError, match=rf"the attribute {name} of the average changes"):
        trainer.train_steps([batch_of(8, seed) for seed in range(3)])


@pytest.mark.parametrize("count", [in_buffer, in_passing_buffer])
def test_all_buffers_of_an_average_are_restored(count):
    definition = definition_of(create_average=lambda model: Counting(model, count))
    batches = [batch_of(8, seed) for seed in range(5)]
    whole, first, rest = (trainer_of(definition) for _ in range(3))
    whole.train_steps(batches)

    first.train_steps(batches[:2])
    rest.load_state(first.state())
    rest.train_steps(batches[2:])

    assert same_bits(rest.state(), whole.state())


# --- float16 -------------------------------------------------------------------------------------


def overflowing(outputs, labels):
    # 65536 times its gradients is more than float16 holds; a few halvings later it is not.
    return 100.0 * mean_loss(outputs, labels)


def half(**more):
    return definition_of(loss=overflowing, precision="fp16", **more)


def plain_scaled(batches):
    """Return the weights and the scale of a loop with a GradScaler."""
    model = trainer_of(half(), batches[0]).model
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = overflowing(
                model(torch.from_numpy(batch.features)), torch.from_numpy(batch.labels)
            )
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.weight.detach().numpy(), scaler.get_scale()


def test_updates_that_overflow_are_skipped_as_by_a_grad_scaler():
    batches = [batch_of(8, seed) for seed in range(8)]
    trainer = trainer_of(half(), batches[0])
    first = trainer.state()["model/weight"]

    trainer.train_steps(batches[:1])
    assert same_bits({"": first}, {"": trainer.state()["model/weight"]}), "It did not overflow."
    trainer.train_steps(batches[1:])

    weights, scale = plain_scaled(batches)
    np.testing.assert_array_equal(trainer.state()["model/weight"], weights)
    assert float(trainer.state()["loss_scale/scale"]) == scale < 65536
    assert not np.array_equal(weights, first)


def test_the_loss_scale_is_part_of_the_state():
    batches = [batch_of(8, seed) for seed in range(8)]
    whole, begun, resumed = (trainer_of(half(), batches[0]) for _ in range(3))
    whole.train_steps(batches)
    begun.train_steps(batches[:3])
    resumed.load_state(begun.state())
    resumed.train_steps(batches[3:])

    assert same_bits(resumed.state(), whole.state())


def test_workers_skip_the_same_updates():
    batch = batch_of(12)
    workers = [trainer_of(half(), batch) for _ in UNEVEN]
    first = workers[0].state()["model/weight"]
    for _ in range(12):
        parts = zip(workers, cut(batch, *UNEVEN), strict=True)
        with np.errstate(invalid="ignore"):
            total = total_of(*(worker.gradients(part)[0] for worker, part in parts))
        for worker in workers:
            worker.apply(total)

    assert all(same_bits(worker.state(), workers[0].state()) for worker in workers)
    assert float(workers[0].state()["loss_scale/scale"]) < 65536
    assert not np.array_equal(workers[0].state()["model/weight"], first)


def test_a_checkpoint_of_another_precision_is_refused():
    with pytest.raises(CheckpointMismatchError, match="another precision"):
        trainer_of(half()).load_state(trainer_of().state())


def test_a_warm_up_that_counts_epochs_is_noted(caplog):
    def warm_up(optimizer):
        return lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))

    def begun(*, resumes=False, **parts):
        trainer = trainer_of(definition_of(**parts))
        trainer.hooks.train_begin(num_epochs=1, num_steps=None, resumes=resumes)

    # Nobody trains a model that is only loaded.
    trainer_of(definition_of(create_lr_schedulers=warm_up))
    assert not caplog.text
    begun(create_lr_schedulers=warm_up)
    assert "the learning rate is 0 in the first epoch" in caplog.text
    assert "LambdaLR steps after each epoch" in caplog.text
    caplog.clear()
    for other in (lambda o: {"scheduler": warm_up(o), "interval": "step"}, step_lr):
        begun(create_lr_schedulers=other)
    begun(create_lr_schedulers=warm_up, resumes=True)
    begun(
        optimizer=lambda parameters: torch.optim.SGD(parameters, 0.0),
        create_lr_schedulers=lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 4),
    )
    assert not caplog.text
