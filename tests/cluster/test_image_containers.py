"""Images of jobs, built by a real engine, pushed to a real registry, run by their digest.

What is slow is shared: one engine, one base image, and layers that are built once.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import shutil
import sysconfig
import threading
import urllib.request
import zipfile
from functools import partial

import pytest
from click.testing import CliRunner
from tests.cluster.containers import BASE, PACKAGES, Containers, NoContainersError, import_base
from tests.cluster.operator import Operator

from elasticdl import api
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.cli.main import cli
from elasticdl.errors import UnavailableError, UsageError

pytest.importorskip("docker")
pytestmark = [pytest.mark.containers, pytest.mark.slow]

TINY = {
    "tiny.py": "SIZE = 1\n",
    "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.0.dist-info/RECORD": "",
}
# Of the user "me" with the password "right"; a registry knows no other kind of hash.
HTPASSWD = "me:$2b$05$abcdefghijklmnopqrstuu8xaCxxL82bnl.UY74PMksDxIJShppPC\n"


@pytest.fixture(scope="module")
def containers():
    try:
        with Containers() as containers, pytest.MonkeyPatch.context() as environment:
            environment.setenv("DOCKER_HOST", containers.host)
            import_base(containers.client())
            yield containers
    except NoContainersError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def registry(containers):
    return containers.registry()


@pytest.fixture
def zoo(tmp_path, repository):
    folder = tmp_path / "zoo"
    folder.mkdir()
    shutil.copy(repository / "examples/iris.py", folder)
    return folder


@pytest.fixture
def build(zoo, registry, index):
    """Return a function that builds the zoo's image; it returns the image and what was told."""

    def build(repository=None, **options):
        told = []
        # One index for all, so that layers below are built once.
        defaults = {"base_image": BASE, "index_url": index, "network": "host"}
        options = api.image_options(repository or f"{registry}/team/app", **{**defaults, **options})
        return api.build_image(str(zoo), options, told.append), "\n".join(told)

    return build


@pytest.fixture
def run(containers):
    """Return a function that runs a command in an image as a pod does; it returns its output."""
    client = containers.client()

    def run(image, command, env=None, volumes=()):
        mounts = {sysconfig.get_path("purelib"): PACKAGES, **dict(volumes)}
        output = client.containers.run(
            image,
            ["/bin/bash", "-lc", command],
            read_only=True,
            tmpfs={"/tmp": ""},
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            environment={"PYTHONPATH": PACKAGES, "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})},
            volumes={str(host): {"bind": bind, "mode": "rw"} for host, bind in mounts.items()},
            stderr=True,
            remove=True,
        )
        return output.decode()

    return run


def test_an_image_trains_by_digest_and_the_model_records_it(
    zoo, registry, index, containers, run, iris, tmp_path
):
    (zoo / ".env").write_text("TOKEN=secret")
    (zoo / "server.pem").write_text("-----BEGIN PRIVATE KEY-----")
    output = tmp_path / "output"
    data = shutil.copytree(iris, tmp_path / "data")
    output.mkdir()
    # The pod's user is another one.
    output.chmod(0o777)
    data.chmod(0o755)

    result = CliRunner().invoke(
        cli,
        ["cluster", "image", f"--model_zoo={zoo}", f"--base_image={BASE}",
         f"--docker_image_repository={registry}/team/app",
         f"--index_url={index}", "--build_network=host"],
        catch_exceptions=False,
    )  # fmt: skip
    image = result.stdout.strip()
    assert re.fullmatch(rf"{registry}/team/app@sha256:[0-9a-f]{{64}}", image)
    assert "server.pem" in result.stderr
    # From the registry, as a node of a cluster has it.
    containers.client().images.remove(image, force=True)
    said = run(
        image,
        "exec 2>&1; echo $UID; echo /model_zoo/custom/* /model_zoo/custom/.[a-z]*; command -v ray;"
        " (echo x > /model_zoo/x) || echo read-only;"
        " elasticdl train --model_zoo=/model_zoo/custom --model_def=iris --max_steps=2"
        " --data='/data/train/*.recordio' --output=/output/model",
        env={"ELASTICDL_IMAGE": image},
        volumes={data: "/data", output: "/output"},
    )

    assert said.startswith("1000\n")
    assert "/model_zoo/custom/iris.py /model_zoo/custom/.[a-z]*\n/usr/local/bin/ray\n" in said
    assert "read-only" in said
    assert "Trained 2 steps" in said
    assert api.recorded_image(str(output / "model")) == image
    assert load_trained_model(output / "model").description.docker_commit_id == image


def test_an_edit_of_the_zoo_changes_only_the_last_layer(build, zoo, containers):
    first, _ = build()
    (zoo / "iris.py").write_text((zoo / "iris.py").read_text() + "\n# edited\n")
    second, _ = build()

    before, after = (
        containers.client().images.get(image).attrs["RootFS"]["Layers"] for image in (first, second)
    )
    assert first != second
    assert before[:-1] == after[:-1]
    assert before[-1] != after[-1]
    # The same files again are the same image.
    assert build()[0] == second


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Return the URL of a package index that has tiny 1.0."""
    folder = tmp_path_factory.mktemp("index")
    (folder / "tiny").mkdir(parents=True)
    wheel = folder / "tiny" / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in TINY.items():
            archive.writestr(name, text)
    link = f"{wheel.name}#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    (folder / "tiny" / "index.html").write_text(f'<a href="{link}">{wheel.name}</a>')
    handler = partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *said):
        pass


def test_requirements_of_the_zoo_come_from_the_named_index(build, zoo, run):
    (zoo / "requirements.txt").write_text("# needed\n-r more.txt\n")
    (zoo / "more.txt").write_text("tiny>=0.5\n")

    image, _ = build()

    assert run(image, "python3 -c 'import tiny; print(tiny.SIZE)'") == "1\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tiny>=2", r"requirements\.txt:2: tiny>=2 is not on http.*1\.0"),
        pytest.param(
            "nosuchpackage==1.0",
            r"requirements\.txt:2: nosuchpackage==1\.0 is not on http",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "tiny ==== 1",
            r"requirements\.txt:2: Invalid requirement",
            marks=pytest.mark.exhaustive,
        ),
        ("numpy<1", r"requirements\.txt:2: numpy<1 .*numpy"),
    ],
)
def test_a_requirement_that_does_not_resolve_is_named_with_its_line(build, zoo, line, words):
    (zoo / "requirements.txt").write_text(f"# numbers\n{line}\n")

    with pytest.raises(UsageError, match=words):
        build()


@pytest.mark.exhaustive
def test_an_index_that_does_not_answer_is_reported(build, zoo):
    (zoo / "requirements.txt").write_text("tiny\n")

    with pytest.raises(UnavailableError, match="index http://127.0.0.1:1 cannot be reached"):
        build(index_url="http://127.0.0.1:1")


def test_a_missing_base_image_is_named(build, registry):
    with pytest.raises(
        UsageError, match=rf"--base_image={registry}/none:1: the image does not exist"
    ):
        build(base_image=f"{registry}/none:1")


@pytest.mark.exhaustive
def test_a_base_image_without_a_shell_is_refused(build, containers):
    containers.client().api.import_image_from_data(b"\0" * 1024, repository="empty", tag="1")

    with pytest.raises(UsageError, match="--base_image=empty:1: it has no /bin/sh"):
        build(base_image="empty:1")


@pytest.fixture(scope="module")
def closed(containers, tmp_path_factory):
    """Return a registry that wants credentials."""
    file = tmp_path_factory.mktemp("closed") / "htpasswd"
    file.write_text(HTPASSWD)
    return containers.registry(auth={"htpasswd": {"realm": "test", "path": str(file)}})


def log_in(monkeypatch, folder, registry, password):
    """Do what `docker login` does."""
    auth = base64.b64encode(f"me:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {registry: {"auth": auth}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


def test_registry_refusals_and_timeouts_have_different_errors(build, closed, tmp_path, monkeypatch):
    log_in(monkeypatch, tmp_path, closed, "wrong")

    with pytest.raises(UsageError, match=f"rejected the image.*docker login {closed}"):
        build(f"{closed}/team/app")
    with pytest.raises(UnavailableError, match="127.0.0.1:1 cannot be reached"):
        build("127.0.0.1:1/team/app")


@pytest.mark.exhaustive
def test_credentials_of_the_registry_and_the_proxy_are_not_in_the_image(
    build, closed, containers, tmp_path, monkeypatch
):
    log_in(monkeypatch, tmp_path, closed, "right")
    # Other layers than those of other tests, built with the proxy.
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("tiny==1.0\n")

    image, _ = build(
        f"{closed}/team/app", proxy="http://proxy.example:3128", constraints=str(constraints)
    )

    found = containers.client().images.get(image)
    words = json.dumps([found.history(), found.attrs])
    assert "proxy.example" not in words
    assert base64.b64encode(b"me:right").decode() not in words
    # The index has no password, and may be there.
    assert "PIP_INDEX_URL=http://127.0.0.1" in words


def test_a_deleted_digest_is_reported_before_a_job_is_submitted(build, registry, zoo):
    (zoo / "other.py").write_text("")
    image, _ = build(f"{registry}/gone/app")
    api.check_image(image)
    digest = image.partition("@")[2]
    urllib.request.urlopen(
        urllib.request.Request(f"http://{registry}/v2/gone/app/manifests/{digest}", method="DELETE")
    ).close()

    with pytest.raises(UsageError, match="has no image .*it was deleted, or never pushed"):
        api.check_image(image)


def test_without_an_engine_one_clear_error_is_raised(build, tmp_path, monkeypatch, registry):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    with pytest.raises(UnavailableError, match="No container engine answers at .*none.sock"):
        build()


def test_a_training_without_an_image_builds_one_and_pods_run_it_by_its_digest(
    zoo, registry, index, api_server, kubeconfig, monkeypatch
):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    command = [
        "train", f"--model_zoo={zoo}", "--model_def=iris", "--data=s3://bucket/train/*.recordio",
        "--output=s3://bucket/my_model", "--num_workers=1..2", "--cluster=kubernetes",
        f"--docker_image_repository={registry}/team/app", f"--base_image={BASE}",
        f"--index_url={index}", "--build_network=host",
    ]  # fmt: skip

    with Operator(api_server, rewrite=lambda _: "python3 -c \"print('trained')\""):
        first = CliRunner().invoke(cli, command, catch_exceptions=False)
        again = CliRunner().invoke(cli, command, catch_exceptions=False)

    [made] = api.connect_cluster().rayjobs("elasticdl.org/job")
    group = made["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    [container] = group["template"]["spec"]["containers"]
    assert re.fullmatch(rf"{registry}/team/app@sha256:[0-9a-f]{{64}}", container["image"])
    assert {"name": "ELASTICDL_IMAGE", "value": container["image"]} in container["env"]
    assert "trained" in first.output
    # What is done needs no image.
    assert "Building an image" in first.output
    assert "Building an image" not in again.output
    assert "has already finished" in again.output
