"""Which files of a zoo enter an image, and which requirements: what is refused, what stays out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile

import pytest

pytest.importorskip("pathspec")

from elasticdl.cluster.images.context import write_context
from elasticdl.cluster.images.requirements import check_lines, requirement_files
from elasticdl.cluster.images.zoo_files import zoo_files
from elasticdl.errors import UsageError

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"  # gitleaks:allow


def made(folder, files):
    """Write files, path -> text, and return their folder."""
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def paths(folder):
    return [entry.path for entry in zoo_files(folder).entries]


# --- files of the zoo


def test_hidden_and_generated_files_are_excluded(tmp_path):
    zoo = made(
        tmp_path,
        dict.fromkeys(
            [
                *(".env", ".git/config", "a/.ssh/id", "a/__pycache__/m.pyc", "m.pyc"),
                *("env/pyvenv.cfg", "env/lib/x.py", "model/trained_model.pb", "model/zoo/m.py"),
                *("a/m.py", "m.py"),
            ],
            "",
        ),
    )

    assert paths(zoo) == ["a/m.py", "m.py"]


def test_gitignore_patterns_exclude_files_as_in_git(tmp_path):
    zoo = made(
        tmp_path,
        {
            ".gitignore": "*.csv\n!keep.csv\n/data/\nbuild/\n",
            "a/.gitignore": "*.txt\n!*.csv\n",
            **dict.fromkeys(
                [
                    *("x.csv", "keep.csv", "data/m.py", "a/data/m.py", "a/build/m.py", "a/x.csv"),
                    *("a/x.txt", "x.txt"),
                ],
                "",
            ),
        },
    )
    subprocess.run(["git", "init", "-q", zoo], check=True)
    said = subprocess.run(
        ["git", "-C", zoo, "ls-files", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip

    assert paths(zoo) == sorted(path for path in said.split() if "gitignore" not in path)
    assert paths(zoo) == ["a/data/m.py", "a/x.csv", "keep.csv", "x.txt"]


def test_dockerignore_patterns_exclude_files_as_in_docker(tmp_path):
    files = ["x.log", "a/x.log", "big/a.bin", "big/keep.py", "b/c/d.tmp", "d.tmp", "m.py"]
    zoo = made(
        tmp_path,
        {
            ".dockerignore": "# data\n*.log\nbig\n!big/keep.py\n**/*.tmp\n",
            **dict.fromkeys(files, ""),
        },
    )
    # The reference.
    matcher = pytest.importorskip("docker.utils.build").PatternMatcher(
        ["*.log", "big", "!big/keep.py", "**/*.tmp"]
    )

    assert paths(zoo) == sorted(path for path in files if not matcher.matches(path))
    assert paths(zoo) == ["a/x.log", "big/keep.py", "m.py"]


def test_keys_are_excluded_by_name_and_content_and_reported(tmp_path):
    zoo = made(
        tmp_path,
        {
            **dict.fromkeys(["a/server.pem", "id_rsa", "prod.env", "service-account-7.json"], ""),
            "settings.json": json.dumps({"private_key": KEY}),
            "m.py": "",
        },
    )

    found = zoo_files(zoo)

    assert [entry.path for entry in found.entries] == ["m.py"]
    assert found.keys == (
        "a/server.pem", "id_rsa", "prod.env", "service-account-7.json", "settings.json",
    )  # fmt: skip


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "inner/../../secret"])
def test_a_link_out_of_the_zoo_is_refused_and_named(tmp_path, target):
    zoo = made(tmp_path / "zoo", {"m.py": "", "inner/n.py": ""})
    (tmp_path / "secret").write_text("")
    (zoo / "inner" / "leak").symlink_to(target if target[0] == "/" else f"../{target}")

    with pytest.raises(UsageError, match=r"to a path outside it: inner/leak -> "):
        zoo_files(zoo)


def test_an_ignored_link_out_of_the_zoo_is_accepted(tmp_path):
    zoo = made(tmp_path, {"m.py": "", ".dockerignore": "leak"})
    (zoo / "leak").symlink_to("/etc/passwd")

    assert paths(zoo) == ["m.py"]


def test_links_within_the_zoo_stay_links(tmp_path):
    zoo = made(tmp_path, {"data/m.py": "", "n.py": ""})
    (zoo / "data" / "n.py").symlink_to("../n.py")
    (zoo / "absolute").symlink_to(zoo / "data")

    links = {entry.path: entry.link for entry in zoo_files(zoo).entries if entry.link}

    assert links == {"data/n.py": "../n.py", "absolute": "data"}


def test_a_zoo_of_data_is_refused_with_its_largest_files(tmp_path, monkeypatch):
    monkeypatch.setattr("elasticdl.cluster.images.zoo_files.MAX_TOTAL_BYTES", 10)
    zoo = made(tmp_path, {"m.py": "1", "records.bin": "0123456789"})

    with pytest.raises(UsageError, match=r"the largest records\.bin, m\.py.*\.dockerignore"):
        zoo_files(zoo)


# --- requirements


def test_requirements_include_the_files_they_refer_to(tmp_path):
    files = {"requirements.txt": "-r a/more.txt\nsix", "a/more.txt": "-c pins.txt\ntiny",
             "a/pins.txt": "tiny==1", "notes.txt": "x"}  # fmt: skip

    assert sorted(requirement_files(files)) == ["a/more.txt", "a/pins.txt", "requirements.txt"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--index-url https://me:pw@host/simple", "contains a password or token"),
        ("tiny @ https://token@host/tiny.whl", "contains a password or token"),
        ("git+https://oauth2:pw@host/tiny.git", "contains a password or token"),
        ("-e .", "a path cannot be installed"),
        ("./tiny", "a path cannot be installed"),
        ("--find-links wheels", "a path cannot be installed"),
        ("-r none.txt", r"has no file none\.txt"),
    ],
)
def test_a_requirement_that_cannot_enter_an_image_is_refused_with_its_line(line, words):
    with pytest.raises(UsageError, match=rf"requirements\.txt:2: .*{words}"):
        requirement_files({"requirements.txt": f"six\n{line}\n"})


@pytest.mark.parametrize(
    "line",
    ["git+ssh://git@host/a.git", "a @ https://${TOKEN}@host/a.whl", "six # ./x", "a[b]>=1; c"],
)
def test_other_requirements_are_left_to_pip(line):
    assert requirement_files({"requirements.txt": line})


def test_a_constraint_with_a_password_is_refused_with_its_line():
    with pytest.raises(UsageError, match=r"pins\.txt:2: the URL contains a password"):
        check_lines("pins.txt", "six==1.17\ntiny @ https://me:pw@host/tiny.whl\n")


# --- the tar file


def test_contexts_do_not_depend_on_owners_and_times(tmp_path):
    contexts = []
    for name, age in (("a", 0), ("b", 10_000)):
        zoo = made(tmp_path / name, {"m.py": "x", "run.sh": "y"})
        (zoo / "run.sh").chmod(0o700)
        (zoo / "m.py").chmod(0o600 if age else 0o666)
        os.utime(zoo / "m.py", (age, age))
        out = io.BytesIO()
        write_context(out, {"Dockerfile": b"FROM x"}, zoo_files(zoo))
        contexts.append(out.getvalue())
        with tarfile.open(fileobj=out) as tar:
            modes = {member.name: oct(member.mode) for member in tar}
    assert contexts[0] == contexts[1]
    assert modes["zoo/m.py"] == "0o644"
    assert modes["zoo/run.sh"] == "0o755"
