"""A place to track in, as people write it."""

import pytest

from elasticdl.tracking.address import database_path, tracking_uri


@pytest.mark.parametrize(
    "uri", ["http://host:5000", "postgresql://u:p@host/db", "databricks", "databricks://profile"]
)
def test_mlflow_addresses_are_kept(uri):
    assert tracking_uri(uri) == uri
    assert database_path(uri) is None


def test_a_folder_gets_a_database(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNS", str(tmp_path / "b"))

    assert tracking_uri("runs/../a") == f"sqlite:///{tmp_path}/a/mlflow.db"
    assert tracking_uri("$RUNS") == f"sqlite:///{tmp_path}/b/mlflow.db"
    assert tracking_uri("a.db") == tracking_uri("sqlite:///a.db") == f"sqlite:///{tmp_path}/a.db"
    assert database_path(tracking_uri("a.db")) == tmp_path / "a.db"


def test_resolving_an_address_twice_changes_nothing(tmp_path):
    once = tracking_uri(str(tmp_path))

    assert tracking_uri(once) == once
