"""Metric names stay readable, apart, and the same in the next attempt."""

from hypothesis import given
from hypothesis import strategies as st

from elasticdl.tracking.names import MetricNames, allowed

HARD = st.text(alphabet="ab@%_./ -é2", max_size=6) | st.sampled_from(["", ".", "..", "a" * 300])


def test_a_valid_name_is_kept():
    assert MetricNames().of(["val/dice-0.5 (x)"[:12]]) == {"val/dice-0.5": "val/dice-0.5"}


@given(st.lists(st.lists(HARD, max_size=6), max_size=4))
def test_names_stay_distinct_and_reproducible(attempts):
    names = MetricNames(kept=["epoch"])
    given_names = {}
    for originals in attempts:
        now = names.of(originals)
        assert all(given_names.get(original, name) == name for original, name in now.items())
        given_names |= now
        names = MetricNames(names.renamed, kept=["epoch"])
        # What the run has of names that stayed is found again as they come.
        names.of(name for name in given_names if given_names[name] == name)

    assert len(set(given_names.values())) == len(given_names)
    assert all(allowed(name) == name for name in given_names.values())
    assert "epoch" not in given_names.values()


def test_mlflow_accepts_allowed_names():
    from mlflow.utils.validation import _validate_metric_name

    @given(HARD)
    def takes(name):
        _validate_metric_name(allowed(name))

    takes()
