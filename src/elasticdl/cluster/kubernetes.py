"""A Kubernetes cluster as its API server shows it: RayJobs, their pods, logs and events.

Objects are the dictionaries that the server sends. Every error of the client becomes one of ours:

    UsageError        no kubeconfig, unknown context, credentials or rights refused, invalid object
    UnavailableError  no answer, too many requests, errors of the server

Callers: `submit.py`, `follow.py`, `inventory.py`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import kubernetes
import urllib3
import yaml
from kubernetes.client import ApiException
from kubernetes.config import ConfigException

from elasticdl.cluster.rayjob import GROUP, VERSION
from elasticdl.data.wording import did_you_mean
from elasticdl.errors import UnavailableError, UsageError

Object: TypeAlias = Mapping[str, Any]

_RAYJOBS = "rayjobs"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Of one request: to connect, and to wait for its answer.
_TIMEOUT_S = (5.0, 30.0)
_TOO_MANY, _ERRORS_OF_SERVERS = 429, 500
_CLOCKS_DIFFER_S = 60
_UNREADABLE = (ConfigException, OSError, yaml.YAMLError, UnicodeDecodeError)


class AlreadyExistsError(Exception):
    """There is an object of this name."""


class Kubernetes:
    """A cluster, seen with a user's credentials, in one namespace.

    Args:
        context: Of the kubeconfig; None takes the current one, or the pod's own account.
        namespace: None takes the context's, or the pod's.

    Attributes:
        name: What to call the cluster in messages.
        context: Of the kubeconfig; None within a pod of the cluster.
        namespace: Where objects are.
        client: The client, with the user's credentials.

    Raises:
        UsageError: There is no kubeconfig, or no such context in it.
    """

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        self.client, self.context, own = _connected(context)
        self.name = self.context or "the cluster of this pod"
        self.namespace = namespace or own
        # The client's types are those of its generated models, not of what is read here.
        self._objects: Any = kubernetes.client.CustomObjectsApi(self.client)
        self._watch: Any = kubernetes.watch.Watch
        self._core: Any = kubernetes.client.CoreV1Api(self.client)

    def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Create a RayJob; returns it as the server has it.

        Args:
            manifest: The RayJob.
            dry_run: Let the server check it only.

        Raises:
            AlreadyExistsError: There is one of its name.
            UsageError: The server refuses it.
            UnavailableError: The server does not answer.
        """
        with self.errors(f"create RayJob {manifest['metadata']['name']}"):
            made: Object = self._objects.create_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                _RAYJOBS,
                manifest,
                field_validation="Strict",
                _request_timeout=_TIMEOUT_S,
                **({"dry_run": "All"} if dry_run else {}),
            )
        return made

    def get(self, name: str) -> Object | None:
        """Return a RayJob; None if there is none of this name."""
        with contextlib.suppress(_NotFoundError), self.errors(f"read RayJob {name}"):
            found: Object = self._objects.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, _RAYJOBS, name, _request_timeout=_TIMEOUT_S
            )
            return found
        return None

    def delete(self, name: str, uid: str) -> None:
        """Delete a RayJob and what it owns, unless it is another one by now or is gone."""
        condition = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        with (
            contextlib.suppress(_NotFoundError, AlreadyExistsError),
            self.errors(f"delete RayJob {name}"),
        ):
            self._objects.delete_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                _RAYJOBS,
                name,
                body=condition,
                _request_timeout=_TIMEOUT_S,
            )

    def rayjobs(self, selector: str) -> list[Object]:
        """Return the RayJobs with some labels."""
        with self.errors("list RayJobs"):
            found: Mapping[str, Any] = self._objects.list_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                _RAYJOBS,
                label_selector=selector,
                _request_timeout=_TIMEOUT_S,
            )
        items: list[Object] = found["items"]
        return items

    def watch(self, name: str, wait_s: int) -> Iterator[Object | None]:
        """Yield a RayJob as it is, and as it is after each change, for some seconds.

        It ends when the time is over or the server closes the connection; call it again then.

        Yields:
            The RayJob; None when it was deleted.
        """
        selected = f"metadata.name={name}"
        with self.errors(f"watch RayJob {name}"):
            listed = self._objects.list_namespaced_custom_object(
                GROUP, VERSION, self.namespace, _RAYJOBS, field_selector=selected,
                _request_timeout=_TIMEOUT_S,
            )  # fmt: skip
            items = [item for item in listed["items"] if item["metadata"]["name"] == name]
            yield items[0] if items else None
            watch: Any = self._watch()
            stream = watch.stream(
                self._objects.list_namespaced_custom_object,
                GROUP,
                VERSION,
                self.namespace,
                _RAYJOBS,
                field_selector=selected,
                resource_version=listed["metadata"]["resourceVersion"],
                timeout_seconds=wait_s,
                _request_timeout=(_TIMEOUT_S[0], wait_s + _TIMEOUT_S[1]),
            )
            with contextlib.closing(stream):
                for event in stream:
                    if event["object"]["metadata"]["name"] == name:
                        yield None if event["type"] == "DELETED" else event["object"]

    def pods(self, selector: str) -> list[Object]:
        """Return the pods with some labels."""
        with self.errors("list pods"):
            answer = self._core.list_namespaced_pod(
                self.namespace,
                label_selector=selector,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            items: list[Object] = json.loads(answer.data)["items"]
        return items

    def events(self, kind: str, name: str) -> list[Object]:
        """Return what the cluster reports of an object, the oldest first."""
        selected = f"involvedObject.kind={kind},involvedObject.name={name}"
        with self.errors("list events"):
            answer = self._core.list_namespaced_event(
                self.namespace,
                field_selector=selected,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            items: list[Object] = json.loads(answer.data)["items"]
        return sorted(items, key=lambda event: str(event.get("lastTimestamp")))

    def log_lines(
        self, pod: str, container: str, *, after: str = "", last: int | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yield what a container has printed since a moment: time stamp and line.

        Args:
            pod: Name of the pod.
            container: Name of its container; nothing is yielded before it has started.
            after: Time stamp of the last line that is known; empty for all lines.
            last: How many lines of the end at most; None for all.
        """
        with (
            contextlib.suppress(_NotFoundError, _NotStartedError),
            self.errors(f"read the log of pod {pod}", is_log=True),
        ):
            options: dict[str, Any] = {} if last is None else {"tail_lines": last}
            if after:
                seen = dt.datetime.fromisoformat(after)
                age = dt.datetime.now(dt.UTC) - seen
                # Clocks differ; what is known already is left out below.
                options["since_seconds"] = max(1, int(age.total_seconds()) + _CLOCKS_DIFFER_S)
            answer = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                timestamps=True,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
                **options,
            )
            for line in answer.data.decode(errors="replace").splitlines():
                stamp, _, text = line.partition(" ")
                if stamp > after:
                    yield stamp, text

    def forward(self, pod: str, port: int) -> Any:
        """Return a connection to a port of a pod's loopback, through the API server.

        Args:
            pod: Name of the pod.
            port: Where it listens. If nothing does, the connection ends at once.

        Returns:
            Has the methods of a `socket.socket`; its owner closes it.

        Raises:
            UsageError: Ports of the pod may not be forwarded.
            UnavailableError: There is no such pod by now, or the server does not answer.
        """
        # Of its own: the client replaces a method of it while it connects.
        core: Any = kubernetes.client.CoreV1Api(
            kubernetes.client.ApiClient(self.client.configuration)
        )
        try:
            with self.errors(f"forward a port of pod {pod}"):
                try:
                    forward: Any = kubernetes.stream.portforward(
                        core.connect_get_namespaced_pod_portforward,
                        pod,
                        self.namespace,
                        ports=str(port),
                    )
                except ApiException as error:
                    raise _of_handshake(error) from error
        except _NotFoundError as error:
            raise UnavailableError(f"The pod {pod} is gone.") from error
        websocket: Any = forward.websocket
        close = websocket.close

        def close_all() -> None:
            close()
            # `close` alone leaves the socket open if the server was first.
            websocket.shutdown()

        websocket.close = close_all
        return forward.socket(port)

    @contextlib.contextmanager
    def errors(self, doing: str, *, is_log: bool = False) -> Iterator[None]:
        """Raise our errors for those of the client, within a `with`.

        Args:
            doing: What the request is for; messages name it.
            is_log: Whether it reads the log of a container, which may not have started.
        """
        try:
            yield
        except ApiException as error:
            raise self._error(error, doing, is_log=is_log) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnavailableError(
                f"The Kubernetes cluster {self.name} does not answer ({_reason(error)}). Is it "
                "running, and can this machine reach it? Try: kubectl cluster-info"
            ) from error

    def _error(self, error: ApiException, doing: str, *, is_log: bool) -> Exception:
        """Return our error for one of the server's."""
        status, said = int(error.status or 0), _said(error)
        where = f"{self.name}, namespace {self.namespace}"
        match status:
            case 0:  # There was no answer: the client wraps what TLS says.
                problem = (
                    f"The certificate of {self.name} is not one that the kubeconfig trusts "
                    f"(certificate-authority-data): {said.splitlines()[-1] if said else ''}"
                )
            case 400 | 422 if is_log:
                return _NotStartedError(said)
            case 401:
                problem = (
                    f"{self.name} does not accept the credentials of the kubeconfig. Log in again, "
                    "or name another context with --context."
                )
            case 404:
                return self._not_found(said)
            case 410:
                return UnavailableError(f"{where}: the watch is too old; it is begun again.")
            case 409:
                return AlreadyExistsError(said)
            case _ if status == _TOO_MANY or status >= _ERRORS_OF_SERVERS:
                return UnavailableError(f"{where}: cannot {doing} now ({status}): {said}")
            case 403:
                problem = f"{where}: not allowed to {doing}: {said}"
            case _:
                problem = f"{where}: cannot {doing}: {said}"
        return UsageError(problem)

    def _not_found(self, said: str) -> Exception:
        """Return the error of something that is not there: an object, a namespace or KubeRay."""
        if not said or "could not find the requested resource" in said:
            return UsageError(
                f"{self.name} has no RayJobs: KubeRay is not installed there. Install it with "
                "`helm install kuberay-operator kuberay/kuberay-operator`, or name another cluster "
                "with --context."
            )
        if said.startswith("namespaces "):
            return UsageError(f"{self.name}: there is no namespace {self.namespace!r}.")
        return _NotFoundError(said)


class _NotFoundError(Exception):
    pass


class _NotStartedError(Exception):
    pass


def _connected(context: str | None) -> tuple[Any, str | None, str]:
    """Return a client, the context's name, and the namespace of the context or the pod."""
    config: Any = kubernetes.config
    configuration: Any = kubernetes.client.Configuration()
    # The client would try three times by itself, each time as long as a request may take.
    configuration.retries = False
    # The client has read the variable when it was imported.
    file = os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        if context is None and _NAMESPACE_FILE.exists():
            config.load_incluster_config(client_configuration=configuration)
            client = kubernetes.client.ApiClient(configuration)
            return client, None, _NAMESPACE_FILE.read_text().strip()
        contexts, current = config.list_kube_config_contexts(file)
    # The client does not look what kind of YAML it reads.
    except (*_UNREADABLE, AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            f"There is no usable kubeconfig at {file} ({_reason(error)}). Set KUBECONFIG or make "
            "~/.kube/config, as for kubectl."
        ) from error
    named = {each["name"]: each for each in contexts}
    chosen = current if context is None else named.get(context)
    if chosen is None:
        raise UsageError(
            f"The kubeconfig has no context {context!r}; it has {', '.join(sorted(named))}"
            f"{did_you_mean(str(context), named)}"
        )
    try:
        config.load_kube_config(file, chosen["name"], client_configuration=configuration)
    except (*_UNREADABLE, AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            f"The context {chosen['name']} of the kubeconfig cannot be used: {_reason(error)}"
        ) from error
    client = kubernetes.client.ApiClient(configuration)
    return client, chosen["name"], chosen["context"].get("namespace") or "default"


def _said(error: ApiException) -> str:
    """Return the server's own words."""
    with contextlib.suppress(ValueError, TypeError):
        said = json.loads(error.body or "").get("message")
        if said:
            return str(said)
    return str(error.reason or "")


def _of_handshake(error: ApiException) -> Exception:
    """Return the error of a connection that was not upgraded, with the status of the answer."""
    # The client keeps the text only of what the connection's own error knows.
    refusal: Any = error.__context__
    status = getattr(refusal, "status_code", None)
    if status is None:
        return ConnectionError(str(error.reason))
    refused: Exception = ApiException(
        status=status, reason=getattr(refusal, "status_message", None)
    )
    refused.body = getattr(refusal, "resp_body", None)  # type: ignore[attr-defined]
    return refused


def _reason(error: BaseException) -> str:
    """Return the innermost reason of an error, in one line."""
    while (inner := getattr(error, "reason", None)) is not None and isinstance(inner, Exception):
        error = inner
    return str(error).splitlines()[0] if str(error) else type(error).__name__
