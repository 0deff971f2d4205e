"""Models have names and versions; a name means the newest complete one."""

from __future__ import annotations

import uuid

import pytest

from elasticdl.errors import OutputBusyError, UsageError
from elasticdl.sql.models import Models


@pytest.fixture(params=["disk", "memory"])
def models(request, tmp_path) -> Models:
    place = str(tmp_path / "models") if request.param == "disk" else f"memory://{uuid.uuid4().hex}"
    return Models(place)


def begun(models: Models, statement: str = "s"):
    with models.training("m", statement, "db") as version:
        return version


def trained(models: Models, statement: str = "s"):
    with models.training("m", statement, "db") as version:
        models.complete(version, version.record)
        return version


def test_a_new_statement_makes_a_new_version_and_keeps_the_old(models) -> None:
    assert trained(models).number == 1
    assert trained(models).number == 2
    assert models.current("m").number == 2
    assert models.current("m").record.is_complete


def test_versions_are_listed_with_the_newest_first(models) -> None:
    trained(models)
    trained(models, "t")
    begun(models, "u")

    listed = [(each.number, each.record.is_complete) for each in models.versions("m")]
    assert listed == [(3, False), (2, True), (1, True)]


def test_the_version_of_a_training_that_did_not_begin_is_reused(models) -> None:
    trained(models)
    models.discard(begun(models, "a"))

    assert begun(models, "b").number == 2


def test_an_incomplete_training_is_resumed_only_by_its_statement(models) -> None:
    trained(models)
    first = begun(models, "a")

    assert begun(models, "a").number == first.number
    assert begun(models, "a").is_resumed
    assert begun(models, "b").number == first.number + 1
    assert models.current("m").number == 1


def test_an_unknown_name_is_answered_with_a_similar_one(models) -> None:
    trained(models)

    with pytest.raises(UsageError, match="did you mean 'm'") as caught:
        models.current("mm")
    assert "trained model 'mm'" in str(caught.value)


def test_a_model_in_training_is_not_yet_available(models) -> None:
    begun(models)

    assert models.names() == []
    with pytest.raises(UsageError, match="not complete"):
        models.current("m")


def test_only_one_process_at_a_time_trains_a_name(models, monkeypatch) -> None:
    monkeypatch.setattr("elasticdl.sql.models._ENDING_S", 0.0)
    with models.training("m", "a", "db"):
        with pytest.raises(OutputBusyError, match="the model m: .* INTO another name"):
            trained(models, "b")
        with models.training("n", "a", "db") as other:
            assert other.number == 1

    assert trained(models, "b").number == 2
