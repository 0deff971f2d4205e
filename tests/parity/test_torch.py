"""PyTorch: every feature, against plain scripts."""

from tests.parity import runner


def test_a_feature_matches_its_plain_script_or_is_refused(trainings, place):
    runner.check(trainings.feature, place, trainings)
