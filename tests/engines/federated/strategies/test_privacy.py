"""What a party can change of a model that is made private, and what noise it gets."""

from __future__ import annotations

from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest

from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.federated.simulation import simulate
from elasticdl.engines.federated.strategies.fusions import FUSIONS
from elasticdl.engines.federated.strategies.privacy import private_mean, privately, system_noise
from elasticdl.engines.federated.strategies.updates import PartyUpdate
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import AggregationError
from elasticdl.event_file import read_events
from elasticdl.events import RoundFinished
from elasticdl.job import CentralPrivacy, Job

AVERAGING = ["iter_avg", "fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi"]


def clipped(norm):
    return CentralPrivacy(norm, noise_multiplier=0.0)


def zeros(*shape):
    return {"w": np.zeros(shape, np.float32)}


def ones(shape):
    return np.ones(shape)


# --- clipping -------------------------------------------------------------------------------


def test_a_change_is_clipped_to_the_norm(update):
    start = {"w": np.float32([1.0, 1.0])}

    mean = private_mean(start, [update("a", [31.0, 41.0])], clipped(5.0))

    np.testing.assert_array_equal(mean["w"], np.float32([4.0, 5.0]))


def test_a_change_within_the_norm_is_not_clipped(update):
    mean = private_mean(zeros(2), [update("a", [3.0, 4.0])], clipped(5.0))

    np.testing.assert_array_equal(mean["w"], np.float32([3.0, 4.0]))


def test_the_norm_is_computed_over_all_arrays():
    start = {"a": np.zeros(1, np.float32), "b": np.zeros((1, 1), np.float64)}
    after = {"a": np.float32([30.0]), "b": np.float64([[40.0]])}

    mean = private_mean(start, [PartyUpdate("p", after, 1)], clipped(5.0))

    assert (mean["a"], mean["b"]) == (3.0, 4.0)


def test_an_unchanged_update_does_not_divide_by_zero(update):
    mean = private_mean(zeros(2), [update("a", [0.0, 0.0])], clipped(1.0))

    np.testing.assert_array_equal(mean["w"], np.float32([0.0, 0.0]))


def test_a_change_whose_square_overflows_is_clipped(update):
    mean = private_mean({"w": np.zeros(1)}, [update("a", [1e300], dtype=np.float64)], clipped(1.0))

    assert abs(mean["w"]) <= 1.0


def test_every_party_counts_once_regardless_of_its_examples(update):
    updates = [update("a", [0.0]), update("b", [2.0], num_examples=99)]

    mean = private_mean(zeros(1), updates, clipped(5.0))

    assert mean["w"] == 1.0


@pytest.mark.parametrize("fusion", AVERAGING)
def test_the_influence_of_a_party_is_bounded(fusion, update):
    """One party sends anything; the fusion's step is that of a mean that moved by S / n."""
    honest = [update("a", [0.5, 0.0]), update("b", [0.0, 0.5])]
    fuse = privately(FUSIONS[fusion], clipped(1.0))

    with_liar = fuse(zeros(2), [*honest, update("c", [1e30, 0.0], num_examples=10**9)], {})

    same_as = FUSIONS[fusion].fuse(zeros(2), [update("x", [0.5, 0.5 / 3])], {})
    np.testing.assert_allclose(with_liar.weights["w"], same_as.weights["w"], rtol=1e-6)


def test_integers_are_kept_from_the_global_model():
    start = {"w": np.zeros(1, np.float32), "seen": np.int64([7]), "on": np.array([True])}
    after = {"w": np.float32([1.0]), "seen": np.int64([999]), "on": np.array([False])}

    mean = private_mean(start, [PartyUpdate("p", after, 1)], CentralPrivacy(1.0, 1.0))

    assert (mean["seen"], mean["on"]) == (7, True)
    assert (mean["seen"].dtype, mean["on"].dtype) == (np.int64, np.bool_)


def test_inputs_are_not_modified(update):
    start, sent = zeros(2), update("a", [30.0, 40.0])

    private_mean(start, [sent], CentralPrivacy(5.0, 1.0))

    np.testing.assert_array_equal(start["w"], [0.0, 0.0])
    np.testing.assert_array_equal(sent.weights["w"], [30.0, 40.0])


def test_the_order_of_parties_does_not_matter(update):
    numbers = np.random.default_rng(0).normal(size=(5, 100)) * 10.0 ** np.arange(-2, 3)[:, None]
    updates = [update(f"p{i}", each, dtype=np.float64) for i, each in enumerate(numbers)]
    start = {"w": np.zeros(100)}

    one = private_mean(start, updates, clipped(3.0))
    other = private_mean(start, updates[::-1], clipped(3.0))

    assert one["w"].tobytes() == other["w"].tobytes()


def test_a_party_that_sends_nan_or_infinity_is_named(update):
    with pytest.raises(AggregationError, match="Party 'b' sent w with 1 of 1 numbers not finite"):
        private_mean(zeros(1), [update("a", [1.0]), update("b", [np.nan])], clipped(1.0))


# --- noise ----------------------------------------------------------------------------------


def test_noise_is_scaled_by_multiplier_norm_and_parties(update):
    updates = [update(name, [0.0, 0.0]) for name in "abcd"]

    mean = private_mean(zeros(2), updates, CentralPrivacy(2.0, 3.0), noise=ones)

    np.testing.assert_array_equal(mean["w"], np.float32([1.5, 1.5]))


def test_each_number_has_independent_noise():
    start = {"a": np.zeros((3, 4), np.float32), "b": np.zeros((3, 4), np.float32)}

    mean = private_mean(start, [PartyUpdate("p", start, 1)], CentralPrivacy(1.0, 1.0))

    assert len(np.unique([mean["a"], mean["b"]])) == 24


def test_noise_is_drawn_each_time(update):
    def drawn():
        return private_mean(zeros(3), [update("a", [0.0] * 3)], CentralPrivacy(1.0, 1.0))["w"]

    np.random.seed(0)  # noqa: NPY002 - users call it, and it must not decide
    first = drawn()
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(first, drawn())


def test_a_variance_does_not_become_negative():
    start = {"bn/moving_variance": np.ones(2, np.float32), "bn/moving_mean": np.ones(2, np.float32)}

    mean = private_mean(
        start, [PartyUpdate("p", start, 1)], CentralPrivacy(1.0, 5.0), noise=lambda s: -np.ones(s)
    )

    np.testing.assert_array_equal(mean["bn/moving_variance"], [0.0, 0.0])
    np.testing.assert_array_equal(mean["bn/moving_mean"], [-4.0, -4.0])


def test_momentum_uses_only_the_noisy_mean(update):
    fuse = privately(FUSIONS["fedavgm"], CentralPrivacy(1.0, 4.0), noise=ones)

    fused = fuse(zeros(1), [update("a", [0.0]), update("b", [0.0])], {})

    assert fused.state["momentum/w"] == -2.0


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0,), (2, 0)])
def test_system_noise_has_any_shape(shape):
    assert system_noise(shape).shape == shape


def test_system_noise_is_normal():
    drawn = np.sort(system_noise((400, 500)).ravel())

    # Kolmogorov and Smirnov: further off than this once in 10^9 runs.
    exact = np.array([NormalDist().cdf(number) for number in drawn[::100]])
    empirical = np.arange(len(drawn))[::100] / len(drawn)
    assert np.max(np.abs(exact - empirical)) < 3.3 / np.sqrt(len(drawn)) + 1e-3
    # Both halves of a pair, and neighbours, have nothing to do with each other.
    halves = system_noise((2, 100_000))
    assert abs(np.corrcoef(halves)[0, 1]) < 0.02


# --- Flower ---------------------------------------------------------------------------------


def flowers(start, arrays, privacy):
    """Return what Flower's own strategy makes of them."""
    flwr_app = pytest.importorskip("flwr.app")
    strategies = pytest.importorskip("flwr.serverapp.strategy")

    def reply(weights):
        content = flwr_app.RecordDict(
            {
                "arrays": flwr_app.ArrayRecord({n: flwr_app.Array(a) for n, a in weights.items()}),
                "metrics": flwr_app.MetricRecord({"num-examples": 1}),
            }
        )
        return SimpleNamespace(content=content, has_error=lambda: False)

    strategy = strategies.DifferentialPrivacyServerSideFixedClipping(
        strategies.FedAvg(), privacy.noise_multiplier, privacy.clipping_norm, len(arrays)
    )
    strategy.current_arrays = flwr_app.ArrayRecord(
        {name: flwr_app.Array(array) for name, array in start.items()}
    )
    made, _ = strategy.aggregate_train(1, [reply(weights) for weights in arrays])
    return dict(zip(made.keys(), made.to_numpy_ndarrays(), strict=True))


def model(seed, size=6):
    numbers = np.random.default_rng(seed)
    return {
        "kernel": numbers.normal(size=(size, 3)).astype(np.float32),
        "bias": numbers.normal(size=3).astype(np.float32),
    }


@pytest.mark.parametrize("norm", [0.3, 4.0, 100.0])
def test_without_noise_the_result_matches_flowers_strategy(norm):
    start, arrays = model(0), [model(seed) for seed in (1, 2, 3)]
    updates = [PartyUpdate(f"p{i}", weights, 1) for i, weights in enumerate(arrays)]

    ours = private_mean(start, updates, clipped(norm))

    theirs = flowers(start, arrays, clipped(norm))
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=2e-5, atol=2e-6)


def test_the_noise_scale_matches_flowers_strategy():
    start = model(0, size=20_000)
    privacy = CentralPrivacy(2.0, 1.5)
    updates = [PartyUpdate(f"p{i}", start, 1) for i in range(4)]

    ours = private_mean(start, updates, privacy)["kernel"] - start["kernel"]

    # Theirs divides by the length of a change, and none is 0.
    moved = [{**start, "bias": start["bias"] + np.float32(0.001)}] * 4
    theirs = flowers(start, moved, privacy)["kernel"] - start["kernel"]
    assert ours.std() == pytest.approx(0.75, rel=0.02)
    assert ours.std() == pytest.approx(theirs.std(), rel=0.03)
    assert ours.mean() == pytest.approx(0.0, abs=0.02)


# --- a training -----------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", sorted(FUSIONS.keys() - set(AVERAGING)))
def test_a_fusion_that_is_not_a_mean_of_weights_is_refused(fusion):
    with pytest.raises(AggregationError, match=f"not supported for the fusion {fusion}"):
        privately(FUSIONS[fusion], clipped(1.0))


def test_a_job_with_central_privacy_survives_a_round_trip(job):
    asked = job(central_privacy=CentralPrivacy(1.0, 0.5))

    assert Job.from_json(asked.to_json()) == asked


def test_central_privacy_is_part_of_a_jobs_identity(job):
    assert job().identity() != job(central_privacy=CentralPrivacy(1.0, 0.5)).identity()


class Heard(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_a_training_reports_its_privacy_and_parties(job, member, tmp_path):
    heard = Heard()
    asked = job(central_privacy=CentralPrivacy(1.0, 0.5), model_def="torch_small")

    simulate.train(asked, heard, [member(0), member(1)])

    said = (
        "Central differential privacy: updates clipped to 1, noise multiplier 0.5; 2 rounds, all "
        "parties each round, each counted once."
    )
    assert heard.notes.count(said) == 1
    told = [
        e for e in read_events(tmp_path / "out" / "events.jsonl") if isinstance(e, RoundFinished)
    ]
    assert [list(each.parties) for each in told] == [["p0", "p1"], ["p0", "p1"]]


def test_a_round_changes_the_model_by_at_most_the_norm(job, member):
    """The next round starts from the model of the first, so its requests contain that model."""
    asked_with = []

    def change(request, answer):
        if request.kind == "train" and answer.party == "p0":
            asked_with.append(request.weights)
        return answer

    asked = job(central_privacy=clipped(0.01), model_def="torch_small")
    simulate.train(asked, Silent(), [member(0), member(1)], change=change)

    before, after = asked_with
    real = [name for name, array in before.items() if array.dtype.kind == "f"]
    moved = np.sqrt(sum(float(np.sum((after[n] - before[n]) ** 2)) for n in real))
    assert 0.001 < moved <= 0.0101


def test_a_large_norm_without_noise_is_iterative_averaging(job, member, run):
    members = [member(0), member(1)]
    plain = run(job("plain", fusion="iter_avg", num_rounds=1), *members)
    private = run(
        job("private", fusion="fedavg", num_rounds=1, central_privacy=clipped(1e6)), *members
    )

    weights = load_trained_model(private.output).params
    for name, array in load_trained_model(plain.output).params.items():
        np.testing.assert_allclose(weights[name], array, rtol=1e-5, atol=1e-7)


def test_a_resumed_training_starts_from_the_noisy_model(job, member, run):
    asked_with = []

    def change(request, answer):
        if request.kind == "train" and answer.party == "p0":
            asked_with.append((request.round, request.weights))
        return answer

    privacy, members = CentralPrivacy(1.0, 1.0), [member(0), member(1)]
    kept = run(job(num_rounds=1, central_privacy=privacy), *members)
    noised = load_trained_model(kept.output).params

    simulate.train(job(central_privacy=privacy), Silent(), members, change=change)

    [(number, weights)] = asked_with
    assert number == 2
    assert {name: array.tobytes() for name, array in noised.items()} == {
        name: weights[name].tobytes() for name in noised
    }
