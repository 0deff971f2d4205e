"""What is installed: extras, the commands that name them, the wheel and the sdist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import elasticdl

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FRAMEWORKS = {"keras", "lightning", "tensorflow", "tensorflow-cpu", "tf-keras", "torch", "torchft"}
# `elasticdl[sql,tensorflow]`, and `.[samples]` in a clone.
NAMED = re.compile(r"""(?:elasticdl|['"]\.)\[([a-z0-9_,-]+)\]""")


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=;! ]", requirement)[0]


def test_no_framework_is_installed_without_an_extra():
    assert FRAMEWORKS & {name_of(each) for each in PROJECT["dependencies"]} == set()


def test_the_extra_all_covers_all_but_gpu_and_developer_extras():
    named = set(NAMED.findall(EXTRAS["all"][0])[0].split(","))

    assert named == set(EXTRAS) - {"all", "dev", "tensorflow-gpu"}


def test_every_extra_is_documented():
    table = (ROOT / "docs" / "start" / "first-steps.md").read_text().partition("## Train")[0]

    assert [each for each in EXTRAS if f"`{each}`" not in table] == ["dev"]


def test_commands_mention_only_existing_extras():
    files = [
        ROOT / "README.md",
        ROOT / "Makefile",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src").rglob("*.py"),
    ]
    named = {
        (extra, path.name)
        for path in files
        for extras in NAMED.findall(path.read_text())
        for extra in extras.split(",")
    }

    assert ("tensorflow", "README.md") in named
    assert [each for each in sorted(named) if each[0] not in EXTRAS] == []


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """Return a folder with what `make dist` builds."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)
    return folder


def test_the_wheel_has_all_files_for_users(dist):
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"elasticdl-{elasticdl.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {re.sub(r"^elasticdl-[^/]*\.", "", name) for name in archive.namelist()}

    assert names >= {
        "abstractions/__init__.py",
        "elasticdl/page/static/uplot.js",
        "elasticdl/py.typed",
        "elasticdl/zoo/prebuilt/mnist.py",
        "elasticdl/zoo/starter/my_model.py",
        "data/data/share/doc/elasticdl/CHANGELOG.md",
        "dist-info/licenses/LICENSE",
    }
    assert {name.partition("/")[0] for name in names} == {
        "abstractions",
        "data",
        "dist-info",
        "elasticdl",
    }


def test_the_sdist_has_all_files_for_developers(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    top = {
        path.name for path in ROOT.iterdir() if path.is_file() and path.suffix in {".md", ".txt"}
    }
    assert top <= names
    assert names >= {
        "LICENSE",
        "Makefile",
        "PKG-INFO",
        "examples/iris.py",
        "pyproject.toml",
        "src/elasticdl/py.typed",
        "tests/conftest.py",
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_training_runs_from_the_wheel(dist, tmp_path):
    """In an empty folder, in an environment whose other packages are those of this one."""
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip = f"{sys.executable} -m pip --python {python} --disable-pip-version-check"
    install = f"{pip} install -q --no-deps --no-index --no-compile {wheel}"
    subprocess.run(install.split(), check=True, timeout=100)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # Paths in a .pth are searched last, and the .pth files there do not count.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    folder = tmp_path / "empty"
    folder.mkdir()
    text = (ROOT / "README.md").read_text().partition("## Train your first model")[2]
    commands = re.findall(r"^\$ (.*)$", text.partition("\nYou can kill the run")[0], re.MULTILINE)
    assert [each.split()[1] for each in commands] == [
        "data",
        "train",
        "evaluate",
        "predict",
        "data",
    ]

    for command in ["python -c 'import elasticdl; print(elasticdl.__file__)'", *commands]:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, check=False,
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if command.startswith("python"):
            assert done.stdout.strip() == str(packages / "elasticdl" / "__init__.py")
    assert (folder / "predicted.recordio").is_file()


def test_the_package_runs_as_the_command_does():
    shown = subprocess.run(
        [sys.executable, "-m", "elasticdl", "--help"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout

    assert shown.startswith("Usage: elasticdl [OPTIONS]")
