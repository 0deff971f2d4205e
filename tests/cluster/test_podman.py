"""Podman in place of Docker: an image is built and pushed through its socket."""

from __future__ import annotations

import shutil
import urllib.request

import pytest
from click.testing import CliRunner
from tests.cluster.containers import BASE, NoContainersError, PodmanContainers, import_base

from elasticdl.cli.main import cli
from elasticdl.errors import UsageError

pytest.importorskip("docker")
pytestmark = [pytest.mark.containers, pytest.mark.slow]


@pytest.fixture(scope="module")
def podman():
    try:
        with PodmanContainers() as podman, pytest.MonkeyPatch.context() as environment:
            environment.setenv("DOCKER_HOST", podman.host)
            import_base(podman.client())
            yield podman
    except NoContainersError as error:
        pytest.skip(str(error))


def build(podman, folder, *more):
    """Build and push the image of a zoo; returns its name, as the command prints it."""
    command = [
        "cluster", "image", f"--model_zoo={folder}", "--build_network=host",
        f"--docker_image_repository={podman.address}/team/app", f"--base_image={BASE}", *more,
    ]  # fmt: skip
    return CliRunner().invoke(cli, command, catch_exceptions=False).stdout.strip()


def test_an_image_is_built_and_pushed_to_the_registry(podman, repository, tmp_path):
    shutil.copy(repository / "examples/iris.py", tmp_path)

    image = build(podman, tmp_path)

    name, _, digest = image.partition("@")
    assert name == f"{podman.address}/team/app"
    there = f"http://{podman.address}/v2/team/app/manifests/{digest}"
    kinds = (
        "application/vnd.oci.image.manifest.v1+json, "
        "application/vnd.docker.distribution.manifest.v2+json"
    )
    asked = urllib.request.Request(there, headers={"Accept": kinds}, method="HEAD")
    with urllib.request.urlopen(asked) as answer:
        assert answer.headers["Docker-Content-Digest"] == digest
    # The same files again are the same image.
    assert build(podman, tmp_path) == image


def test_a_missing_base_image_is_named(podman, tmp_path):
    base = f"--base_image={podman.address}/none:1"

    with pytest.raises(UsageError, match=f"{base}: the image does not exist"):
        build(podman, tmp_path, base)
