"""A feature gives the plain script's numbers in every place, or is refused by name."""

import pytest
from tests.parity import runner
from tests.parity.features import PLACES, all_features

FEATURES = {feature.id: feature for feature in all_features()}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    runner.write_data(folder)
    return folder


@pytest.fixture(scope="module")
def trainings(request, data, tmp_path_factory):
    feature = FEATURES[request.param]
    return runner.Trainings(feature, tmp_path_factory.mktemp(feature.name), data)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("trainings", FEATURES, indirect=True, scope="module")
def test_a_feature_gives_the_numbers_of_the_plain_script_or_is_refused(trainings, place):
    runner.check(trainings.feature, place, trainings)
