"""A cluster of one node, a registry and an object store, as a user's commands reach them.

A real engine and registry, a real Ray in the pods, a stand-in for the API server, KubeRay's
operator and the kubelet (`operator.py`, `pod_containers.py`), and an S3 server for data and models.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.api_server import ApiServer, write_kubeconfig
from tests.cluster.api_server.resources import PODS, RAYJOBS, SECRETS
from tests.cluster.containers import Containers, import_base
from tests.cluster.crd import rayjob_schema
from tests.cluster.operator import Operator
from tests.cluster.pod_containers import PodContainers

_PATIENCE_S = 240


class World:
    """A cluster of one node, a registry and an object store.

    Args:
        folder: For files of the user; commands run in it.
        undo: Ends all of it.
        node: Makes what runs the pods; it gets the engine of the user, which may run them too.

    Raises:
        NoContainersError: No container engine or no registry runs here.
    """

    def __init__(
        self,
        folder: Path,
        undo: contextlib.ExitStack,
        node: Callable[[Any], PodContainers] = PodContainers,
    ) -> None:
        self.folder = folder
        containers = undo.enter_context(Containers())
        self.engine = containers.client()
        import_base(self.engine)
        self.pods = undo.enter_context(node(self.engine))
        self.registry = containers.registry()
        self._start_store(undo)
        self.server = undo.enter_context(ApiServer(rayjob_schema(), namespaces=("default",)))
        data = {key: b64encode(value.encode()).decode() for key, value in self._aws.items()}
        self.server.store.create(SECRETS, "default", {"metadata": {"name": "s3"}, "data": data})
        self.server.connect = self.pods.connect
        undo.enter_context(Operator(self.server, containers=self.pods))
        self.environment = {
            **os.environ, **self._aws, "DOCKER_HOST": containers.host,
            "KUBECONFIG": str(write_kubeconfig(folder / "kubeconfig", self.server)),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip

    def _start_store(self, undo: contextlib.ExitStack) -> None:
        server = undo.enter_context(
            subprocess.Popen(
                [sys.executable, Path(__file__).parents[1] / "s3_server.py", self.pods.gateway],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        )  # fmt: skip
        undo.callback(server.kill)
        self._store = f"http://{self.pods.gateway}:{int(server.stdout.readline())}"
        self._aws = {
            "AWS_ENDPOINT_URL": self._store, "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip

    def put(self, name: str, content: bytes) -> None:
        """Write an object of the bucket."""
        self._ask("PUT", name, content)

    def delete(self, name: str) -> None:
        """Delete an object of the bucket, if it is there."""
        self._ask("DELETE", name)

    def get(self, name: str) -> bytes:
        """Read an object of the bucket."""
        import fsspec

        # With credentials: what a job has written is not public.
        bucket = fsspec.filesystem("s3", key="test", secret="test", endpoint_url=self._store)
        content: bytes = bucket.cat(f"honest/{name}")
        return content

    def _ask(self, method: str, name: str, content: bytes | None = None) -> None:
        request = urllib.request.Request(
            f"{self._store}/honest/{name}", content, method=method,
            headers={"Content-Type": "application/octet-stream"},
        )  # fmt: skip
        urllib.request.urlopen(request).close()

    @contextlib.contextmanager
    def command(self, *arguments: str) -> Any:
        """Run `elasticdl` as a user does; yields a `Command`."""
        log = self.folder / f"{arguments[0]}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "elasticdl.cli.main", *arguments],
                stdout=output, stderr=subprocess.STDOUT, env=self.environment, cwd=self.folder,
            )  # fmt: skip
        try:
            yield Command(process, log)
        finally:
            process.kill()
            process.wait()

    def image_of(self, command: str) -> str:
        """Return the image that the RayJob of a command names for its workers."""
        [found] = [each for each in self.server.store.list(RAYJOBS)
                   if f"elasticdl {command} " in each["spec"]["entrypoint"]]  # fmt: skip
        [group] = found["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        [container] = group["template"]["spec"]["containers"]
        image: str = container["image"]
        return image

    def workers(self) -> list[str]:
        """Return the names of the worker pods that run."""
        return sorted(
            each["metadata"]["name"] for each in self.server.store.list(PODS)
            if each["metadata"]["labels"].get("ray.io/node-type") == "worker"
            and each["status"]["phase"] == "Running"
            and "deletionTimestamp" not in each["metadata"]
        )  # fmt: skip

    def images_of_pods(self) -> set[str]:
        """Return the images that pods of Ray are containers of."""
        return {self.pods.container(name).attrs["Config"]["Image"] for name in self.workers()}


@dataclass(frozen=True)
class Command:
    """A command that runs, and what it has printed."""

    process: subprocess.Popen
    log: Path

    def wait_for(self, condition: Any, what: str) -> None:
        """Return when something is so, while the command runs."""
        until = time.monotonic() + _PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"It ended before {what}:\n{self.text()}"
            assert time.monotonic() < until, f"Waited in vain for {what}:\n{self.text()}"
            time.sleep(0.1)

    def text(self, first: int = 0) -> str:
        """Return what it has printed, from a line on."""
        return "\n".join(self.log.read_text().splitlines()[first:])

    def num_lines(self) -> int:
        return len(self.log.read_text().splitlines())

    def wait_for_text(self, text: str) -> None:
        self.wait_for(lambda: text in self.log.read_text(), repr(text))

    def wait_for_the_end(self) -> str:
        """Return what it has printed, when it has ended well."""
        code = self.process.wait(_PATIENCE_S)
        assert code == 0, self.text()
        return self.log.read_text()
