"""A zoo in a git repository is checked out at a commit that is known, and stays that commit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from elasticdl.errors import UsageError
from elasticdl.zoo import git
from elasticdl.zoo.folder import open_zoo
from elasticdl.zoo.git import GitUrl, checkout, commit_of, is_git_url, parse_git_url


def run(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with two commits, the first one tagged v1."""
    folder = tmp_path / "models"
    (folder / "vision").mkdir(parents=True)
    run(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "m.py").write_text("net = 1\n")
    (folder / "vision" / "n.py").write_text("net = 2\n")
    run(folder, "add", ".")
    run(folder, "commit", "--quiet", "-m", "first")
    run(folder, "tag", "-a", "v1", "-m", "release")
    (folder / "m.py").write_text("net = 3\n")
    run(folder, "commit", "--quiet", "-am", "second")
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_default_branch_is_checked_out_at_its_commit(repository, cache) -> None:
    folder, commit = checkout(f"file://{repository}", cache)

    assert (folder / "m.py").read_text() == "net = 3\n"
    assert commit == run(repository, "rev-parse", "HEAD")
    assert folder.is_relative_to(cache)


def test_a_tag_a_branch_and_a_commit_can_be_named(repository, cache) -> None:
    run(repository, "branch", "feature/x", "v1")
    first = run(repository, "rev-parse", "v1^{commit}")

    for ref in ("v1", "feature/x", first):
        folder, commit = checkout(f"file://{repository}@{ref}", cache)
        assert (folder / "m.py").read_text() == "net = 1\n"
        assert commit == first


def test_a_subfolder_can_be_the_zoo(repository, cache) -> None:
    folder, _ = checkout(f"file://{repository}@v1#vision", cache)

    assert [path.name for path in folder.iterdir()] == ["n.py"]


def test_a_missing_subfolder_is_reported_with_existing_ones(repository, cache) -> None:
    with pytest.raises(UsageError, match="no folder 'visoin' at commit .*there: vision"):
        checkout(f"file://{repository}#visoin", cache)


@pytest.mark.parametrize("subfolder", ["../x", "a/../../x", "/etc", ".git"])
def test_a_subfolder_must_stay_inside_the_repository(repository, cache, subfolder) -> None:
    with pytest.raises(UsageError, match="inside the repository"):
        checkout(f"file://{repository}#{subfolder}", cache)


def test_a_subfolder_that_is_a_link_out_of_the_repository_is_refused(repository, cache) -> None:
    (repository / "out").symlink_to("/etc")
    run(repository, "add", ".")
    run(repository, "commit", "--quiet", "-m", "link")

    with pytest.raises(UsageError, match="no folder 'out'"):
        checkout(f"file://{repository}#out", cache)


def test_a_commit_is_fetched_once(repository, cache) -> None:
    commit = run(repository, "rev-parse", "HEAD")
    first, _ = checkout(f"file://{repository}@{commit}", cache)
    repository.rename(repository.with_name("gone"))

    assert checkout(f"file://{repository}@{commit}", cache) == (first, commit)


def test_a_changed_checkout_is_recreated(repository, cache) -> None:
    folder, _ = checkout(f"file://{repository}", cache)
    (folder / "m.py").write_text("net = 'changed'\n")
    (folder / "more.py").write_text("")

    again, _ = checkout(f"file://{repository}", cache)

    assert (again / "m.py").read_text() == "net = 3\n"
    assert not (again / "more.py").exists()


def test_a_broken_checkout_leaves_nothing_behind(repository, cache) -> None:
    with pytest.raises(UsageError):
        checkout(f"file://{repository}@{'0' * 40}", cache)

    assert [path for shelf in cache.iterdir() for path in shelf.iterdir()] == []


def test_no_hook_runs_and_no_submodule_is_fetched(repository, cache, tmp_path, monkeypatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    run(other, "init", "--quiet")
    run(other, "commit", "--quiet", "--allow-empty", "-m", "x")
    run(repository, "submodule", "--quiet", "add", str(other), "sub")
    run(repository, "commit", "--quiet", "-m", "submodule")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (hooks / "post-checkout").chmod(0o755)
    settings = tmp_path / "gitconfig"
    settings.write_text(
        f"[core]\n hooksPath = {hooks}\n[submodule]\n recurse = true\n"
        '[protocol "file"]\n allow = always\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))

    folder, _ = checkout(f"file://{repository}", cache)

    assert not (tmp_path / "ran").exists()
    assert list((folder / "sub").iterdir()) == []


def test_a_missing_ref_is_reported_with_existing_ones(repository, cache) -> None:
    with pytest.raises(UsageError, match="no branch or tag 'v2'. It has: main, v1"):
        checkout(f"file://{repository}@v2", cache)


def test_errors_of_git_are_passed_on(tmp_path, cache) -> None:
    with pytest.raises(UsageError, match="git reported: fatal: .*nowhere.* does not "):
        checkout(f"file://{tmp_path}/nowhere", cache)


@pytest.mark.parametrize("zoo", ["ext::sh -c touch% /tmp/x.git", "https://host/x@--upload-pack=x"])
def test_an_address_cannot_inject_a_command(zoo, cache) -> None:
    with pytest.raises(UsageError):
        checkout(zoo, cache)


def test_variables_of_a_surrounding_git_hook_are_ignored(
    repository, cache, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))

    assert checkout(f"file://{repository}", cache)[0].is_dir()


@pytest.mark.parametrize(
    ("zoo", "parts"),
    [
        ("https://host/org/models", ("https://host/org/models", None, "")),
        ("https://me@host/models", ("https://me@host/models", None, "")),
        ("https://host/models@feature/x", ("https://host/models", "feature/x", "")),
        ("ssh://git@host/models@v1#a/b", ("ssh://git@host/models", "v1", "a/b")),
        ("git@host:org/models.git", ("git@host:org/models.git", None, "")),
        ("git@host:org/models.git@v1", ("git@host:org/models.git", "v1", "")),
        ("/srv/models.git@v1#x", ("/srv/models.git", "v1", "x")),
    ],
)
def test_an_address_may_have_a_ref_and_a_subfolder(zoo: str, parts: tuple) -> None:
    assert is_git_url(zoo)
    assert parse_git_url(zoo) == GitUrl(*parts)


def test_an_at_sign_in_a_local_folder_name_is_not_a_ref(tmp_path) -> None:
    (tmp_path / "me@home" / "models.git").mkdir(parents=True)

    url = parse_git_url(f"file://{tmp_path}/me@home/models.git")

    assert url.ref is None


@pytest.mark.parametrize("zoo", ["work", "/home/me@x/work", "./models", "~/git", "models.github"])
def test_a_folder_is_not_a_git_address(zoo: str) -> None:
    assert not is_git_url(zoo)


def test_a_password_is_never_shown(cache, monkeypatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "http.proxy")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "http://127.0.0.1:1")

    with pytest.raises(UsageError) as caught:
        checkout("https://me:secret@localhost/models@v1", cache)

    assert "secret" not in str(caught.value)
    assert GitUrl("https://me:secret@host/x").shown == "https://host/x"


def test_a_folder_of_a_repository_has_a_commit_and_a_changed_flag(repository) -> None:
    head = run(repository, "rev-parse", "HEAD")
    clean = commit_of(repository / "vision")
    (repository / "m.py").write_text("changed elsewhere")
    elsewhere = commit_of(repository / "vision")
    (repository / "vision" / "new.py").write_text("")

    assert (clean, elsewhere) == (head, head)
    assert commit_of(repository / "vision") == f"{head}-dirty"


def test_an_untracked_folder_has_no_commit(repository, tmp_path) -> None:
    (repository / "output").mkdir()
    (repository / ".gitignore").write_text("output\n")
    outside = tmp_path / "plain"
    outside.mkdir()

    assert commit_of(repository / "output") is None
    assert commit_of(outside) is None


def test_the_commit_of_a_zoo_is_known_for_any_location(repository, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(git, "_cache", lambda: tmp_path / "cache")
    head = run(repository, "rev-parse", "HEAD")

    cloned = open_zoo(f"file://{repository}")
    local = open_zoo(str(repository))

    assert (cloned.commit, local.commit) == (head, head)
    assert cloned.name == f"file://{repository}"


def test_without_git_a_remedy_is_reported(repository, cache, monkeypatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)

    with pytest.raises(UsageError, match="needs the program `git`"):
        checkout(f"file://{repository}", cache)
    assert commit_of(repository) is None
