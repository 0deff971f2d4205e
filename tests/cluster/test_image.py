"""What an image is made of: which versions, which steps; and what is told if it cannot be built."""

from __future__ import annotations

import platform
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from importlib.metadata import PathDistribution, distribution

import pytest

pytest.importorskip("pathspec")

from click.testing import CliRunner
from packaging.requirements import Requirement
from tests.cluster.test_rayjob import IMAGE, job_of, options_of

from elasticdl import api
from elasticdl.artifacts.trained_model import Description, OutputFolder, save_trained_model
from elasticdl.cli.main import cli
from elasticdl.cluster.images import build_errors, names
from elasticdl.cluster.images import lock as lock_module
from elasticdl.cluster.images.build import DEFAULT_BASE, ImageOptions, check
from elasticdl.cluster.images.build_errors import ImageRequest
from elasticdl.cluster.images.dockerfile import MARK, dockerfile
from elasticdl.cluster.images.lock import lock
from elasticdl.cluster.images.wheel import PACKAGES, wheel
from elasticdl.cluster.rayjob import manifest
from elasticdl.errors import UnavailableError, UsageError

# --- what an image is made of


def test_layers_that_change_seldom_come_first():
    text = dockerfile("python:3.11-slim", "e.whl", ["requirements.txt"], {"a": "b"})

    parts = ["FROM python", "dependencies.txt", "e.whl", "requirements/", "USER 1000", "COPY zoo/"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "requirements" not in dockerfile("python:3.11-slim", "e.whl", [], {})


def test_an_edit_of_the_zoo_invalidates_only_the_last_instruction():
    text = dockerfile("python:3.11-slim", "e.whl", ["requirements.txt"], {"a": "b"})

    assert text.splitlines()[-1].startswith("COPY zoo/ ")


def test_the_wheel_has_the_running_code_and_installs(tmp_path):
    name, data = wheel(distribution("elasticdl"))
    (tmp_path / name).write_bytes(data)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
         "--no-compile", f"--target={tmp_path}/there", tmp_path / name],
        check=True,
    )  # fmt: skip
    said = subprocess.run(
        [tmp_path / "there/bin/elasticdl", "--version"],
        check=True, capture_output=True, text=True, env={"PYTHONPATH": f"{tmp_path}/there"},
    ).stdout  # fmt: skip

    assert distribution("elasticdl").version in said
    with zipfile.ZipFile(tmp_path / name) as archive:
        packed = archive.namelist()
        # Else each build would make other layers.
        assert {member.date_time[0] for member in archive.infolist()} == {1980}
    assert "elasticdl/py.typed" in packed
    assert "elasticdl/zoo/starter/my_model.py" in packed
    assert not [each for each in packed if "__pycache__" in each]
    assert wheel(distribution("elasticdl"))[1] == data


def test_the_wheel_has_the_packages_of_pyproject(repository):
    text = (repository / "pyproject.toml").read_text()
    packages = tomllib.loads(text)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

    assert {f"src/{each}" for each in PACKAGES} == set(packages)


def test_the_lock_pins_all_dependencies_as_installed_here():
    locked = lock("linux/amd64")

    pins = dict(line.split("==") for line in locked.constraints)
    assert pins["numpy"] == distribution("numpy").version
    assert pins["ray"] == distribution("ray").version
    # Of something that is needed by what is needed.
    assert "h11" in pins or "idna" in pins or "markdown-it-py" in pins
    assert "elasticdl" not in pins
    # A tool of developers.
    assert "pytest" not in pins
    assert "tensorflow-cpu>=2.21" in locked.requirements
    assert not [line for line in locked.requirements if "kubernetes" in line]


def test_the_lock_reads_the_metadata_of_each_package_once(monkeypatch):
    read, parsed = Counter(), Counter()

    def counted(name):
        read[name] += 1
        return distribution(name)

    def parsed_line(line):
        parsed[line] += 1
        return Requirement(line)

    monkeypatch.setattr(lock_module, "distribution", counted)
    monkeypatch.setattr(lock_module, "Requirement", parsed_line)
    locked = lock("linux/amd64")

    names = [line.partition("==")[0] for line in locked.constraints]
    assert {read[name] for name in names} == {1}
    lines = sum(len(distribution(name).requires or ()) for name in ["elasticdl", *names])
    assert parsed.total() == lines


def test_the_lock_matches_the_platform_of_the_image():
    locked = lock("linux/arm64")

    assert "tensorflow>=2.21" in locked.requirements
    assert "tensorflow-cpu>=2.21" not in locked.requirements


METADATA = """\
Metadata-Version: 2.4
Name: elasticdl
Version: 1
Requires-Dist: ray; extra == "elastic"
Requires-Dist: tensorflow-cpu>=2; (platform_machine == "x86_64") and extra == "tensorflow"
Requires-Dist: tensorflow>=2; (platform_machine != "x86_64") and extra == "tensorflow"
Requires-Dist: {other}; extra == "tensorflow-gpu"
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the name of TensorFlow's package")
@pytest.mark.parametrize("other", ["tensorflow-cpu", "no-such-package"])
def test_the_tensorflow_package_depends_on_the_platform(tmp_path, other):
    (tmp_path / "METADATA").write_text(METADATA.format(other=other))

    locked = lock("linux/arm64", PathDistribution(tmp_path))

    assert locked.requirements == ("ray", "tensorflow>=2")


def test_the_image_omits_frameworks_not_installed_here(tmp_path):
    text = METADATA.format(other="no-such-package").replace("tensorflow-cpu", "no-such-build")
    (tmp_path / "METADATA").write_text(text)

    assert lock("linux/amd64", PathDistribution(tmp_path)).requirements == ("ray",)


# --- names and flags


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("docker-pullable://reg.example/a/b@sha256:" + "e8" * 16,
         "reg.example/a/b@sha256:" + "e8" * 16),
        ("docker://127.0.0.1:5000/app:v1", "127.0.0.1:5000/app:v1"),
        ("python:3.11-slim", "python:3.11-slim"),
    ],
)  # fmt: skip
def test_image_names_reported_by_pods_are_accepted(text, name):
    assert names.image(text) == name


@pytest.mark.parametrize("text", ["App", "a b", "reg/app@sha256:12", "", "https://reg/app"])
def test_an_invalid_image_name_is_refused(text):
    with pytest.raises(UsageError, match="is not an image name"):
        names.image(text)


@pytest.mark.parametrize("text", ["reg.example/app:v1", IMAGE, "Reg/App"])
def test_an_image_is_pushed_to_a_repository_without_a_tag(text):
    with pytest.raises(UsageError, match="--docker_image_repository="):
        names.repository(text)


@pytest.mark.parametrize(
    "options",
    [
        {"index_url": "https://me:pw@host/simple"},
        {"extra_index_urls": ("https://token@host/simple",)},
        {"proxy": "http://me:pw@proxy:3128"},
    ],
)
def test_passwords_never_enter_images_or_messages(options):
    with pytest.raises(UsageError, match="contains a password or token") as caught:
        check(ImageOptions("reg.example/app", **options))
    assert "pw" not in str(caught.value).replace("password", "")
    assert "token@" not in str(caught.value)


def test_the_base_image_has_the_same_python_version():
    python = f"{sys.version_info.major}.{sys.version_info.minor}"

    assert f"docker.io/library/python:{python}-slim" == DEFAULT_BASE


CLUSTER = ["train", "--model_def=mnist", "--data=s3://b/d", "--output=s3://b/o",
           "--num_workers=2", "--cluster=kubernetes"]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "needs --image.*--docker_image_repository"),
        ([f"--image={IMAGE}", "--docker_image_repository=r.example/a"], "Use only one of them"),
        (
            ["--base_image=python:3.12-slim"],
            "Add the repository to push it to: --docker_image_repository",
        ),
        (["--docker_image_repository=r.example/a", "--manifest"], "builds no image"),
        (["--image=A B"], "is not an image name"),
    ],
)
def test_incompatible_image_flags_are_refused(flags, words):
    with pytest.raises(UsageError, match=words):
        CliRunner().invoke(cli, [*CLUSTER, *flags], catch_exceptions=False)


# --- what a model remembers


def test_pods_get_the_name_of_their_image():
    job = manifest(job_of(), options_of())
    cluster = job["spec"]["rayClusterSpec"]

    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        [container] = group["template"]["spec"]["containers"]
        assert {"name": "ELASTICDL_IMAGE", "value": IMAGE} in container["env"]


def saved(folder, image):
    save_trained_model(OutputFolder(folder), Description("mnist.model", docker_commit_id=image), {})
    return str(folder)


def test_a_cluster_prediction_runs_the_image_of_the_training(tmp_path):
    model = saved(tmp_path / "model", f"docker-pullable://{IMAGE}")

    result = CliRunner().invoke(
        cli,
        ["predict", f"--trained_model={model}", "--data=s3://b/d", "--output=s3://b/o",
         "--num_workers=3", "--cluster=kubernetes", "--manifest", f"--volume=pvc:c:{tmp_path}"],
        catch_exceptions=False,
    )  # fmt: skip

    # Of the head, the workers and the pod that submits.
    assert result.output.count(f"image: {IMAGE}") == 3
    assert "elasticdl predict --trained_model=" in result.output
    assert api.recorded_image(model) == IMAGE


def test_a_locally_trained_model_has_no_image(tmp_path):
    with pytest.raises(UsageError, match="records no image"):
        api.recorded_image(saved(tmp_path / "model", ""))


# --- what goes wrong while building


PIP = "(from -r /model_zoo/custom/requirements.txt (line 3))"


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ([f"{MARK} python"], UsageError, "it has no python3 of version 3.11 or newer"),
        ([f"{MARK} command ray"], UsageError, "the command ray was not found"),
        (
            ["ERROR: Could not find a version that satisfies the requirement tiny>=2 (versions: 1)",
             "ERROR: No matching distribution found for tiny>=2"],
            UsageError, r"^requirements\.txt:2: tiny>=2 is not on https://i/simple",
        ),
        (
            [f"ERROR: Could not find a version that satisfies the requirement x==9 {PIP}",
             "ERROR: No matching distribution found for x==9"],
            UsageError, r"^requirements\.txt:3: x==9 is not on",
        ),
        (
            ["ERROR: Cannot install numpy<1 because these package versions have conflicts.",
             "    The user requested numpy<1", "    The user requested (constraint) numpy==2.4"],
            UsageError, r"^requirements\.txt:1: numpy<1 conflicts with .* numpy==2\.4",
        ),
        (["ERROR: No matching distribution found for torch==2.13.0+cpu"],
         UsageError, r"^torch==2\.13\.0\+cpu, which ElasticDL needs, is not on"),
        (["WARNING: Retrying after connection broken by 'NewConnectionError'",
          "ERROR: No matching distribution found for tiny>=2"],
         UnavailableError, "index https://i/simple cannot be reached"),
        (["gcc: not found"], UsageError, "cannot be built: exit 1\n  gcc: not found"),
    ],
)  # fmt: skip
def test_errors_of_pip_are_reported_with_their_line(said, kind, words):
    wanted = ImageRequest(
        "base:1", "https://i/simple", {"requirements.txt": "numpy<1\ntiny>=2\nx==9"}
    )

    error = build_errors.build_failed("exit 1", said, 7, wanted)

    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error


def test_a_base_image_without_a_shell_is_reported():
    error = build_errors.build_failed(
        'exec: "/bin/sh": stat /bin/sh: no such file or directory', [], 2, ImageRequest("base:1")
    )

    assert str(error).startswith("--base_image=base:1: it has no /bin/sh")


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("manifest for base:1 not found: manifest unknown", UsageError, "the image does not exist"),
        ("pull access denied for base", UsageError, "or you are not allowed to pull it"),
        ("Get https://r/v2/: dial tcp: lookup r: no such host", UnavailableError,
         "its registry cannot be reached"),
    ],
)  # fmt: skip
def test_an_unavailable_base_image_is_reported_with_the_reason(said, kind, words):
    with pytest.raises(kind, match=f"--base_image=base:1: .*{words}"):
        raise build_errors.build_failed(said, [], 1, ImageRequest("base:1"))


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("unauthorized: authentication required", UsageError, "docker login r.example"),
        ("denied: requested access to the resource is denied", UsageError, "docker login"),
        ("no basic auth credentials", UsageError, "docker login"),
        ("Get https://r.example/v2/: dial tcp 10.0.0.1:443: i/o timeout", UnavailableError,
         "r.example cannot be reached"),
        ("http: server gave HTTP response to HTTPS client", UnavailableError, "insecure"),
        ("blob upload invalid", UsageError, "cannot be pushed"),
    ],
)  # fmt: skip
def test_a_failed_push_is_reported_with_the_reason(said, kind, words):
    with pytest.raises(kind, match=words):
        raise build_errors.push_failed(said, "r.example/team/app")
