"""Client of a Kubernetes API server: RayJobs, their pods, logs and events.

Objects are the dictionaries sent by the server. Every error of the client library is converted:

    UsageError        no kubeconfig, unknown context, credentials or rights rejected, invalid object
    UnavailableError  no answer, too many requests, server errors

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
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import UnavailableError, UsageError

Object: TypeAlias = Mapping[str, Any]

_RAYJOBS = "rayjobs"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# For each request: connect timeout and read timeout.
_TIMEOUT_S = (5.0, 30.0)
_TOO_MANY, _ERRORS_OF_SERVERS = 429, 500
_CLOCKS_DIFFER_S = 60
_UNREADABLE = (ConfigException, OSError, yaml.YAMLError, UnicodeDecodeError)


class AlreadyExistsError(Exception):
    """An object with this name exists already."""


class Kubernetes:
    """A cluster, accessed with a user's credentials, in one namespace.

    Args:
        context: Context of the kubeconfig. None: the current one, or the pod's own account.
        namespace: Namespace to use. None: that of the context or the pod.

    Attributes:
        name: Name of the cluster for messages.
        context: Context of the kubeconfig; None inside a pod of the cluster.
        namespace: Namespace of the objects.
        client: The API client, with the user's credentials.

    Raises:
        UsageError: There is no kubeconfig, or it does not have the context.
    """

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        self.client, self.context, own = _connected(context)
        self.name = self.context or "the cluster of this pod"
        self.namespace = namespace or own
        # Any: the client's type hints are those of its models, but the raw JSON is read here.
        self._objects: Any = kubernetes.client.CustomObjectsApi(self.client)
        self._watch: Any = kubernetes.watch.Watch
        self._core: Any = kubernetes.client.CoreV1Api(self.client)

    def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Create a RayJob; return it as stored by the server.

        Args:
            manifest: The RayJob.
            dry_run: Only let the server validate it.

        Raises:
            AlreadyExistsError: A RayJob with its name exists.
            UsageError: The server rejects it.
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
        """Return a RayJob; None if there is none with this name."""
        with contextlib.suppress(_NotFoundError), self.errors(f"read RayJob {name}"):
            found: Object = self._objects.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, _RAYJOBS, name, _request_timeout=_TIMEOUT_S
            )
            return found
        return None

    def delete(self, name: str, uid: str) -> None:
        """Delete a RayJob and the objects it owns, such as its pods; ignore one that is gone.

        Args:
            name: Name of the RayJob.
            uid: Uid of the RayJob. If another RayJob has taken the name since, its uid differs, and
                it is kept.
        """
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
        """Return the RayJobs that match a label selector."""
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
        """Yield a RayJob in its current state and after each change, for some seconds.

        Ends after `wait_s` seconds, or earlier if the server closes the connection. To continue to
        watch, call it again.

        Yields:
            The RayJob; None if it does not exist or was deleted.
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
        """Return the pods that match a label selector."""
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
        """Return the cluster's events about an object, the oldest first."""
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
        """Yield (time stamp, line) for a container's log lines after a time stamp.

        Args:
            pod: Name of the pod.
            container: Name of its container; nothing is yielded before it has started.
            after: Time stamp of the last known line; empty for all lines.
            last: Maximum number of lines, counted from the end; None for all.
        """
        with (
            contextlib.suppress(_NotFoundError, _NotStartedError),
            self.errors(f"read the log of pod {pod}", is_log=True),
        ):
            options: dict[str, Any] = {} if last is None else {"tail_lines": last}
            if after:
                seen = dt.datetime.fromisoformat(after)
                age = dt.datetime.now(dt.UTC) - seen
                # A margin, because clocks differ; known lines are skipped below.
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
        """Open a connection to a port on a pod's loopback, through the API server.

        Args:
            pod: Name of the pod.
            port: The port. If nothing listens there, the connection ends immediately.

        Returns:
            An object with the methods of a `socket.socket`; the caller closes it.

        Raises:
            UsageError: Forwarding ports of the pod is not allowed.
            UnavailableError: The pod no longer exists, or the server does not answer.
        """
        # A separate client, because connecting temporarily replaces one of the client's methods.
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
            raise UnavailableError(f"The pod {pod} no longer exists.") from error
        websocket: Any = forward.websocket
        close = websocket.close

        def close_all() -> None:
            close()
            # `close` alone leaves the socket open if the server has closed first.
            websocket.shutdown()

        websocket.close = close_all
        return forward.socket(port)

    @contextlib.contextmanager
    def errors(self, doing: str, *, is_log: bool = False) -> Iterator[None]:
        """Context manager that converts the client library's errors to `ElasticDLError`s.

        Args:
            doing: What the request does, for messages, such as "read the log of pod a".
            is_log: Whether it reads the log of a container, which may not have started yet.
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
        """Convert an error response of the server to an `ElasticDLError`."""
        status, message = int(error.status or 0), _message_of(error)
        where = f"{self.name}, namespace {self.namespace}"
        match status:
            case 0:  # No HTTP answer: the client wraps the TLS error.
                problem = (
                    f"The certificate of {self.name} is not trusted by the kubeconfig "
                    f"(certificate-authority-data): {message.splitlines()[-1] if message else ''}"
                )
            case 400 | 422 if is_log:
                return _NotStartedError(message)
            case 401:
                problem = (
                    f"{self.name} rejected the credentials of the kubeconfig. Log in again, or "
                    "choose another context with --context."
                )
            case 404:
                return self._not_found(message)
            case 410:
                return UnavailableError(f"{where}: the watch has expired and will be restarted.")
            case 409:
                return AlreadyExistsError(message)
            case _ if status == _TOO_MANY or status >= _ERRORS_OF_SERVERS:
                return UnavailableError(f"{where}: cannot {doing} now ({status}): {message}")
            case 403:
                problem = f"{where}: not allowed to {doing}: {message}"
            case _:
                problem = f"{where}: cannot {doing}: {message}"
        return UsageError(problem)

    def _not_found(self, message: str) -> Exception:
        """Build the error for a 404: the object, its namespace or KubeRay itself is missing."""
        if not message or "could not find the requested resource" in message:
            return UsageError(
                f"{self.name} has no RayJobs: KubeRay is not installed there. Install it with "
                "`helm install kuberay-operator kuberay/kuberay-operator`, or choose another "
                "cluster with --context."
            )
        if message.startswith("namespaces "):
            return UsageError(f"{self.name}: there is no namespace {self.namespace!r}.")
        return _NotFoundError(message)


class _NotFoundError(Exception):
    pass


class _NotStartedError(Exception):
    pass


def _connected(context: str | None) -> tuple[Any, str | None, str]:
    """Create an API client.

    Returns:
        The client, the name of its context (None with the account of a pod), and the default
        namespace.
    """
    config: Any = kubernetes.config
    configuration: Any = kubernetes.client.Configuration()
    # Otherwise the client would try three times, each time with the full timeout.
    configuration.retries = False
    # Read here, because the client reads the variable only once, when it is imported.
    file = os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        if context is None and _NAMESPACE_FILE.exists():
            config.load_incluster_config(client_configuration=configuration)
            client = kubernetes.client.ApiClient(configuration)
            return client, None, _NAMESPACE_FILE.read_text().strip()
        contexts, current = config.list_kube_config_contexts(file)
    # The client does not validate the structure of the YAML.
    except (*_UNREADABLE, AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            f"There is no usable kubeconfig at {file} ({_reason(error)}). Set KUBECONFIG or create "
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


def _message_of(error: ApiException) -> str:
    """Return the server's own error message."""
    with contextlib.suppress(ValueError, TypeError):
        message = json.loads(error.body or "").get("message")
        if message:
            return str(message)
    return str(error.reason or "")


def _of_handshake(error: ApiException) -> Exception:
    """Restore the HTTP status, such as 403, in the error of a refused port-forward connection.

    When the WebSocket handshake fails, the client library keeps only the message.

    Returns:
        An `ApiException` with the status; a `ConnectionError` if the server sent no status.
    """
    # The client keeps only the message; the status is in the original error.
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
    """Return the innermost reason of an error, such as "connection refused", as one line."""
    while (inner := getattr(error, "reason", None)) is not None and isinstance(inner, Exception):
        error = inner
    return str(error).splitlines()[0] if str(error) else type(error).__name__
