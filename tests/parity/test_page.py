"""The page for users is what the table says, and the table is whole."""

import pytest
from tests.parity.cells import FILES, features_of
from tests.parity.features import FOLDER, Promise, all_features, read_feature
from tests.parity.page import PAGE, page


def test_the_page_matches_the_generator():
    assert PAGE.read_text() == page(all_features()), "Run: python -m tests.parity"


def test_sixty_keras_and_twenty_pytorch_features_are_listed():
    frameworks = [feature.framework for feature in all_features()]

    assert frameworks.count("keras") >= 60
    assert frameworks.count("torch") >= 20


def test_each_feature_is_trained_by_one_file():
    trained = [feature.id for file in (*FILES, "test_torch") for feature in features_of(file)]

    assert sorted(trained) == sorted(feature.id for feature in all_features())
    assert all((FOLDER / f"{file}.py").is_file() for file in (*FILES, "test_torch"))


def test_features_of_a_framework_have_different_titles():
    titles = [(feature.framework, feature.title) for feature in all_features()]

    assert sorted(titles) == sorted(set(titles))


def test_the_table_is_read_without_a_framework(run_python):
    code = f"""
import sys
sys.path.insert(0, {str(FOLDER.parents[1])!r})
from tests.parity.features import all_features
from tests.parity.page import page
page(all_features())
assert not {{"keras", "tensorflow", "torch"}} & set(sys.modules)
"""
    assert run_python(code).returncode == 0


def test_a_promise_is_read_with_its_tolerance_and_its_reason():
    assert Promise.from_text("equal") == Promise("equal")
    assert Promise.from_text("equal within 1e-3: few bits") == Promise(
        "equal within", "few bits", 1e-3
    )
    assert Promise.from_text("refused: a: b").why == "a: b"


@pytest.mark.parametrize("text", ["", "fine", "refused", "differs: ", "equal within 1e-3"])
def test_a_promise_without_a_kind_or_reason_is_refused(text):
    with pytest.raises(ValueError, match="equal|why"):
        Promise.from_text(text)


def test_a_refusal_states_the_words_of_its_error(tmp_path):
    file = tmp_path / "keras" / "one.py"
    file.parent.mkdir()
    file.write_text('"""One."""\n\nGROUP = "Some"\nEXPECT = "refused: why"\n')

    with pytest.raises(ValueError, match="REFUSAL"):
        read_feature(file)
