"""Whoever dies, and wherever: the weights of every replica say that each record counted once.

The model's gradient of record i is the i-th unit vector and its optimizer adds, so that after
epoch k every weight of every replica is k: exactly. The same audit is made of engines that are
broken on purpose, and finds it.
"""

import random
import re
import time
from collections import Counter
from functools import partial

import pytest
from tests.chaos.small_disk import CannotMountError
from tests.chaos.storm import (
    DRIVER,
    ELSEWHERE,
    EXIT_CODES,
    FROZEN,
    FULL_DISK,
    INTERRUPTED,
    JOINS,
    PAUSED,
    SLEEPERS,
    SURROUNDINGS,
    TERMINATED,
    ZOO,
    Storm,
)
from tests.engines.elastic.training import COUNTING, write_numbers

# All that one sees of a worker from the inside, and what is done to it from the outside.
NAMED_POINTS = [
    "tracing", "late", "adding", "summed", "voted", "serving", "fetching", "publishing",
    "evaluating", "stopping", DRIVER,
]  # fmt: skip
FURTHER_POINTS = [
    "asking", "applied", "healed", "handing", "measured", "ending", ELSEWHERE, PAUSED, FROZEN,
    TERMINATED, INTERRUPTED, FULL_DISK, *SURROUNDINGS, *SLEEPERS, *JOINS,
]  # fmt: skip
# Beside another one, so that two fall at the same moment: all but those that take a while.
ALONE = {
    "stopping", DRIVER, PAUSED, FROZEN, TERMINATED, INTERRUPTED, FULL_DISK, *SURROUNDINGS,
    *SLEEPERS, *JOINS,
}  # fmt: skip
# Nothing else beside it: what is waited for would be something else.
UNDISTURBED = {FULL_DISK, *SLEEPERS, *JOINS}
BESIDES = [p for p in NAMED_POINTS + FURTHER_POINTS if p not in ALONE]
NUM_EPOCHS = 3
# The weights are compared each 256 commits: not so many.
NUM_FORKED_EPOCHS = 4
MINIBATCH_SIZE = 16
COUNTING_WITH_CALLBACKS = ZOO / "counting_keras.py"
# PyTorch has no callbacks. All have validation data, checkpoints and a spare.
LONG_STORMS = {
    "Keras, callbacks, fixed logical batch": (COUNTING_WITH_CALLBACKS, ["--global_batch_size=64"]),
    "PyTorch, fixed logical batch": (COUNTING, ["--global_batch_size=64"]),
    "Keras, callbacks": (COUNTING_WITH_CALLBACKS, []),
}

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "numbers.recordio")


def storm_on(numbers, tmp_path, *more, model=COUNTING, **options):
    arguments = [f"--data={numbers}", f"--minibatch_size={MINIBATCH_SIZE}", *more]
    return Storm(tmp_path, model, arguments, **options)


def without_end(numbers, tmp_path, *more, **options):
    return storm_on(
        numbers, tmp_path, f"--validation_data={numbers}", "--num_workers=3",
        "--num_spare_workers=1", "--num_epochs=1000000", "--checkpoint_steps=10", *more, **options,
    )  # fmt: skip


@pytest.fixture
def small_disk():
    """Return a function that gives a storm a disk that can be filled, where there can be one."""
    made = []

    def make(make_storm):
        try:
            made.append(make_storm(has_small_disk=True))
        except CannotMountError as error:
            print(f"no full disk: {error}")
            made.append(make_storm())
        return made[-1]

    yield make
    for storm in made:
        storm.close()


def test_exit_codes_in_a_storm_are_the_documented_ones(repository):
    text = (repository / "docs" / "reference" / "exit-codes.md").read_text()

    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert {code for code in EXIT_CODES.values() if code >= 0} <= documented


@pytest.mark.timeout(900)
def test_a_death_at_any_point_leaves_each_record_counted_once(numbers, tmp_path):
    # The Lighthouse, Ray's own and a frozen worker are in tests/engines/elastic/test_silence.py.
    processes = ["fork server", TERMINATED, "actor"]
    points = random.Random(2).sample(NAMED_POINTS, len(NAMED_POINTS))
    with without_end(numbers, tmp_path, seed=2) as storm:
        storm.wait_for_steps_of(3)
        for point in points:
            storm.strike(point)
            # Two, so that somebody is there to go on with what the next one leaves.
            storm.wait_for_steps_of(2)
        for point in processes:
            storm.strike(point)
        num_epochs = storm.finish()

        storm.assert_each_record_counts(num_epochs)
    assert {hit["point"] for hit in storm.hits()} == set(points) - {DRIVER}
    assert storm.num_starts() > 1
    # SIGTERM ended it after a last checkpoint.
    assert lost_before_the_last_start(storm) == 0
    assert "is replaced by process" in storm.log()
    assert "raylet" not in storm.log()


def lost_before_the_last_start(storm):
    """Return how many steps were made once more, because no checkpoint held them."""
    step = lost = 0
    for event in storm.events("step_committed", "job_started"):
        if event["event"] == "job_started":
            lost = step - event["resumed_from_step"]
        else:
            step = event["step"]
    return lost


@pytest.fixture(scope="module")
def points_left():
    """Return a generator of random numbers, and the points that no long storm has had yet."""
    seed = time.time_ns() % 10**6
    print(f"seed {seed}")
    rng, points = random.Random(seed), NAMED_POINTS + FURTHER_POINTS
    return rng, rng.sample(points, len(points))


@pytest.mark.chaos
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LONG_STORMS)
def test_a_long_storm_leaves_each_record_counted_once(
    numbers, tmp_path, chaos_minutes, points_left, small_disk, name
):
    (model, more), (rng, left) = LONG_STORMS[name], points_left
    until = time.monotonic() + chaos_minutes * 60 / len(LONG_STORMS)
    seed = rng.randrange(10**6)
    storm = small_disk(partial(without_end, numbers, tmp_path, *more, model=model, seed=seed))
    points = [p for p in NAMED_POINTS + FURTHER_POINTS if p != FULL_DISK or storm.has_small_disk]
    with storm:
        storm.wait_for_steps_of(3)
        while time.monotonic() < until:
            point = left.pop() if left else rng.choice(points)
            if point in points:
                storm.strike(point, *([] if point in UNDISTURBED else _another(rng)))
            storm.wait_for_steps_of(rng.choice([1, 1, 2, 3]))
        try:
            num_epochs = storm.finish(finally_hit="finishing")
        finally:
            print(f"{len(storm.done)} strikes: {storm.done}\nlongest: {storm.pauses()[:5]}")

        storm.assert_each_record_counts(num_epochs)
    print(f"{num_epochs} epochs")


def _another(rng):
    """Return a second point, one time in three."""
    return rng.sample(BESIDES, 1) if rng.random() < 1 / 3 else []


# --- an engine that is broken on purpose --------------------------------------------------------


@pytest.fixture(scope="module")
def broken(numbers, tmp_path_factory):
    """A training that forgets a lease in the first epoch, and skips a batch in the second."""
    with storm_on(
        numbers, tmp_path_factory.mktemp("broken"), "--num_workers=2", f"--num_epochs={NUM_EPOCHS}",
        faults=["forgetful", "skipping"], pause_s=0.3,
    ) as storm:  # fmt: skip
        storm.wait_for_steps_of(2)
        # Who comes at once goes on with the lease, and nothing is lost.
        storm.hold_one_back()
        storm.strike(ELSEWHERE)
        storm.wait_for(lambda: storm.events("worker_left"), "its death to be told")
        # The survivor hears of it with one and passes it on with the next.
        storm.wait_for_updates(5)
        assert storm.epoch() == 0
        storm.release()
        storm.rest(0)
        storm.wait_for_the_end()
    return storm


@pytest.mark.timeout(600)
@pytest.mark.parametrize("epoch", [0, 1, 2], ids=["forgetful", "skipping", "sound"])
def test_weights_and_audit_reveal_a_broken_ledger(broken, epoch):
    lacking = missing_after(broken, epoch) - missing_after(broken, epoch - 1)

    assert bool(lacking) == (epoch < 2)
    code, report = broken.audit()
    assert code == 1
    wrong = [wrong for wrong in report["wrong"] if wrong["epoch"] == epoch]
    named = [place["record"] for each in wrong for place in each["records"]]
    assert sorted(named) == sorted(lacking.elements())


def missing_after(storm, epoch):
    """Return record -> how often it was left out up to an epoch's end; all replicas agree."""
    told = [replica["wrong"] for replica in storm.replicas() if replica["epoch"] == epoch]
    assert told or epoch < 0
    assert all(wrong == told[0] for wrong in told)
    return Counter(
        {int(i): epoch + 1 - int(count) for wrong in told[:1] for i, count in wrong.items()}
    )


@pytest.mark.timeout(600)
def test_a_silent_fork_leaves_each_record_counted_once(numbers, tmp_path):
    storm = train_with_a_fork(numbers, tmp_path, "forked")

    storm.assert_each_record_counts(NUM_FORKED_EPOCHS)


@pytest.mark.chaos  # Two workers without lineages are in `engines/elastic/test_allreduce.py`.
@pytest.mark.timeout(600)
def test_without_lineages_a_silent_fork_changes_the_weights(numbers, tmp_path):
    storm = train_with_a_fork(numbers, tmp_path, "forked", "blind")

    # Rank 0 has its lonely step behind it; the others never get what it brought in there.
    wrong = [replica for replica in storm.replicas() if replica["wrong"]]
    assert {replica["rank"] for replica in wrong} == {1, 2, 3}
    for replica in wrong:
        assert min(replica["wrong"].values()) == replica["epoch"]


def train_with_a_fork(numbers, tmp_path, *faults):
    arguments = [f"--data={numbers}", "--minibatch_size=32", "--num_workers=4"]
    storm = Storm(
        tmp_path, COUNTING, [*arguments, f"--num_epochs={NUM_FORKED_EPOCHS}"],
        faults=faults, pause_s=1.0,
    )  # fmt: skip
    with storm:
        # Slowly until all are there: what is forked is an epoch that all began.
        storm.wait_for_steps_of(4)
        storm.rest(0.03)
        storm.wait_for_the_end()
    assert storm.num_that_met() == 4
    return storm
