"""Whoever dies, and wherever: the weights of every replica say that each record counted once.

The model's gradient of record i is the i-th unit vector and its optimizer adds, so that after
epoch k every weight of every replica is k: exactly. The same audit is made of engines that are
broken on purpose, and finds it.
"""

import random
import time
from collections import Counter

import pytest
from tests.chaos.storm import (
    DRIVER,
    ELSEWHERE,
    FROZEN,
    PAUSED,
    SURROUNDINGS,
    TERMINATED,
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
    TERMINATED, *SURROUNDINGS,
]  # fmt: skip
# Beside another one, so that two fall at the same moment: all but those that take a while.
ALONE = {"stopping", DRIVER, PAUSED, FROZEN, TERMINATED, *SURROUNDINGS}
BESIDES = [p for p in NAMED_POINTS + FURTHER_POINTS if p not in ALONE]
NUM_EPOCHS = 3
# The weights are compared each 256 commits: not so many.
NUM_FORKED_EPOCHS = 4
MINIBATCH_SIZE = 16

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "numbers.recordio")


def storm_on(numbers, tmp_path, *more, **options):
    arguments = [f"--data={numbers}", f"--minibatch_size={MINIBATCH_SIZE}", *more]
    return Storm(tmp_path, COUNTING, arguments, **options)


def without_end(numbers, tmp_path, *more, seed):
    return storm_on(
        numbers, tmp_path, f"--validation_data={numbers}", "--num_workers=3",
        "--num_spare_workers=1", "--num_epochs=1000000", "--checkpoint_steps=10", *more, seed=seed,
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_a_death_at_any_named_point_leaves_each_record_counted_once(numbers, tmp_path):
    points = random.Random(2).sample(NAMED_POINTS, len(NAMED_POINTS))
    with without_end(numbers, tmp_path, seed=2) as storm:
        storm.wait_for_steps_of(3)
        for point in points:
            storm.strike(point)
            # Two, so that somebody is there to go on with what the next one leaves.
            storm.wait_for_steps_of(2)
        num_epochs = storm.finish()

        storm.assert_each_record_counts(num_epochs)
    assert {hit["point"] for hit in storm.hits()} == set(points) - {DRIVER}
    assert storm.num_starts() > 1
    assert "is replaced by process" in storm.log()
    assert "raylet" not in storm.log()


@pytest.mark.timeout(600)
def test_each_process_of_a_job_may_die(numbers, tmp_path):
    # The Lighthouse, Ray's own and a frozen worker are in tests/engines/elastic/test_silence.py.
    points = ["fork server", TERMINATED, "actor"]
    with without_end(numbers, tmp_path, seed=3) as storm:
        storm.wait_for_steps_of(3)
        for point in points:
            storm.strike(point)
        num_epochs = storm.finish()

        storm.assert_each_record_counts(num_epochs)


@pytest.mark.chaos
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "more", [[], ["--global_batch_size=64"]], ids=["each step", "fixed logical batch"]
)
def test_a_long_storm_leaves_each_record_counted_once(numbers, tmp_path, chaos_minutes, more):
    seed = time.time_ns() % 10**6
    print(f"seed {seed}")
    rng = random.Random(seed)
    # Half of the time for each of the two.
    until = time.monotonic() + chaos_minutes * 60 / 2
    points = NAMED_POINTS + FURTHER_POINTS
    left = rng.sample(points, len(points))
    with without_end(numbers, tmp_path, *more, seed=seed) as storm:
        storm.wait_for_steps_of(3)
        while time.monotonic() < until:
            storm.strike(left.pop() if left else rng.choice(points), *_another(rng))
            storm.wait_for_steps_of(rng.choice([1, 1, 2, 3]))
        num_epochs = storm.finish(finally_hit="finishing")

        storm.assert_each_record_counts(num_epochs)
    print(f"{num_epochs} epochs, {len(storm.done)} strikes: {storm.done}")


def _another(rng):
    """Return a second point, one time in three."""
    return rng.sample(BESIDES, 1) if rng.random() < 1 / 3 else []


# --- an engine that is broken on purpose --------------------------------------------------------


@pytest.fixture(scope="module")
def broken(numbers, tmp_path_factory):
    """A training that forgets a piece in the first epoch, and skips a batch in the second."""
    with storm_on(
        numbers, tmp_path_factory.mktemp("broken"), "--num_workers=2", f"--num_epochs={NUM_EPOCHS}",
        faults=["forgetful", "skipping"], pause_s=0.3,
    ) as storm:  # fmt: skip
        storm.wait_for_steps_of(2)
        # Who comes at once goes on with the piece, and nothing is lost.
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
def test_a_broken_ledger_shows_in_the_weights_and_the_audit_names_the_records(broken, epoch):
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


@pytest.mark.chaos  # Two workers without lineages are in `engines/elastic/test_quorum.py`.
@pytest.mark.timeout(600)
def test_without_lineages_a_silent_fork_shows_in_the_weights(numbers, tmp_path):
    storm = train_with_a_fork(numbers, tmp_path, "forked", "blind")

    # Slot 0 has its lonely step behind it; the others never get what it brought in there.
    wrong = [replica for replica in storm.replicas() if replica["wrong"]]
    assert {replica["slot"] for replica in wrong} == {1, 2, 3}
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
