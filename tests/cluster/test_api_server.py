"""The stand-in API server answers as a real one does; rules are numbered as in its docstring.

Everything goes through the unmodified `kubernetes` client, so most of this can be tried on a real
server with KubeRay's CRDs.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from datetime import UTC, datetime
from itertools import islice

import pytest
from tests.cluster import pod_states
from tests.cluster.api_server import Fault, quota_exceeded
from tests.cluster.api_server.resources import DEPLOYMENTS, LOCAL_QUEUES, PODS, RAYJOBS

kubernetes = pytest.importorskip("kubernetes")
urllib3 = pytest.importorskip("urllib3")

ApiException = kubernetes.client.ApiException
TEMPLATE = {"spec": {"containers": [{"name": "ray", "image": "registry.example/app:1"}]}}
RAYJOB_PATH = ("ray.io", "v1", "default", "rayjobs")


def rayjob(name="job", **spec):
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "labels": {"team": "a"}},
        "spec": {
            "entrypoint": "true",
            "rayClusterSpec": {"headGroupSpec": {"rayStartParams": {}, "template": TEMPLATE}},
            **spec,
        },
    }


def pod(name="pod", **metadata):
    return {"metadata": {"name": name, **metadata}, **TEMPLATE}


class RayJobs:
    """The calls of the client for RayJobs, with what is always the same filled in."""

    def __init__(self, api_client):
        self._api = kubernetes.client.CustomObjectsApi(api_client)

    def create(self, body, **options):
        return self._api.create_namespaced_custom_object(*RAYJOB_PATH, body, **options)

    def get(self, name="job"):
        return self._api.get_namespaced_custom_object(*RAYJOB_PATH, name)

    def list(self, **options):
        return self._api.list_namespaced_custom_object(*RAYJOB_PATH, **options)

    def names(self, **options):
        return [each["metadata"]["name"] for each in self.list(**options)["items"]]

    def patch(self, body, name="job", **options):
        return self._api.patch_namespaced_custom_object(*RAYJOB_PATH, name, body, **options)

    def patch_status(self, body, name="job"):
        return self._api.patch_namespaced_custom_object_status(*RAYJOB_PATH, name, body)

    def replace(self, body, name="job"):
        return self._api.replace_namespaced_custom_object(*RAYJOB_PATH, name, body)

    def replace_status(self, body, name="job"):
        return self._api.replace_namespaced_custom_object_status(*RAYJOB_PATH, name, body)

    def delete(self, name="job", **options):
        return self._api.delete_namespaced_custom_object(*RAYJOB_PATH, name, **options)

    def watch(self, **options):
        """Yield the type and the object of each event."""
        stream = kubernetes.watch.Watch().stream(
            self._api.list_namespaced_custom_object, *RAYJOB_PATH, **options
        )
        return ((event["type"], event["object"]) for event in stream)


@pytest.fixture
def api_client(kubeconfig):
    with kubernetes.config.new_client_from_config(str(kubeconfig)) as client:
        yield client


@pytest.fixture
def rayjobs(api_client):
    return RayJobs(api_client)


@pytest.fixture
def core(api_client):
    return kubernetes.client.CoreV1Api(api_client)


def refused(code, call, *arguments, **options):
    """Return the Status of a call that the server refuses."""
    with pytest.raises(ApiException) as refusal:
        call(*arguments, **options)
    assert refusal.value.status == code
    status = json.loads(refusal.value.body)
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", code)
    return status


def in_background(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


# 1


def test_a_dynamic_client_discovers_rayjobs(api_client, tmp_path):
    from kubernetes.dynamic import DynamicClient

    client = DynamicClient(api_client, cache_file=tmp_path / "cache")
    found = client.resources.get(api_version="ray.io/v1", kind="RayJob")
    made = found.create(body=rayjob(), namespace="default")

    assert made.metadata.uid
    assert client.version["kubernetes"]["gitVersion"] == "v1.36.0"


def test_the_definitions_of_kuberay_are_listed(api_client):
    api = kubernetes.client.ApiextensionsV1Api(api_client)

    names = [each.metadata.name for each in api.list_custom_resource_definition().items]

    assert names == ["rayclusters.ray.io", "rayjobs.ray.io"]


def test_an_unknown_path_is_a_404_without_a_status(api_client):
    api = kubernetes.client.CustomObjectsApi(api_client)

    with pytest.raises(ApiException) as refusal:
        api.list_namespaced_custom_object("kueue.x-k8s.io", "v1beta1", "default", "localqueues")

    assert (refusal.value.status, refusal.value.body) == (404, "404 page not found\n")


# 2


def test_a_wrong_token_is_unauthorized(kubeconfig):
    with kubernetes.config.new_client_from_config(str(kubeconfig), "wrong-token") as client:
        assert refused(401, RayJobs(client).list)["reason"] == "Unauthorized"


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_a_client_without_a_token_is_anonymous(api_server):
    configuration = kubernetes.client.Configuration(host=api_server.url)
    configuration.verify_ssl = False
    with kubernetes.client.ApiClient(configuration) as client:
        assert 'User "system:anonymous"' in refused(403, RayJobs(client).list)["message"]


def test_the_unreachable_context_refuses_connections(kubeconfig):
    with (
        kubernetes.config.new_client_from_config(str(kubeconfig), "unreachable") as client,
        pytest.raises(urllib3.exceptions.HTTPError, match="Connection refused"),
    ):
        RayJobs(client).list()


def test_a_server_without_a_known_certificate_is_not_trusted(kubeconfig):
    with (
        kubernetes.config.new_client_from_config(str(kubeconfig), "untrusted") as client,
        pytest.raises(urllib3.exceptions.HTTPError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        RayJobs(client).list()


# 3


def test_actions_beyond_a_role_are_forbidden_and_can_be_checked(api_server, api_client, rayjobs):
    api_server.access.forbid("create", "rayjobs.ray.io")
    reviews = kubernetes.client.AuthorizationV1Api(api_client)

    def may(verb):
        attributes = {"group": "ray.io", "resource": "rayjobs", "verb": verb}
        body = {"spec": {"resourceAttributes": {**attributes, "namespace": "default"}}}
        return reviews.create_self_subject_access_review(body).status.allowed

    status = refused(403, rayjobs.create, rayjob())

    assert status["message"] == (
        'rayjobs.ray.io is forbidden: User "tester" cannot create resource "rayjobs" in API group '
        '"ray.io" in the namespace "default"'
    )
    assert (may("create"), may("list")) == (False, True)


# 4


def test_an_unknown_field_is_refused_in_strict_mode(rayjobs):
    body = rayjob(entrypoints="x")

    status = refused(400, rayjobs.create, body, field_validation="Strict")

    assert status["message"] == (
        'RayJob in version "v1" cannot be handled as a RayJob: strict decoding error: unknown '
        'field "spec.entrypoints"'
    )


@pytest.mark.parametrize(
    ("how", "warning"),
    [("Warn", '299 - "unknown field \\"spec.entrypoints\\""'), ("Ignore", None)],
)
def test_an_unknown_field_is_removed_in_other_modes(api_client, how, warning):
    api = kubernetes.client.CustomObjectsApi(api_client)

    made, _, headers = api.create_namespaced_custom_object_with_http_info(
        *RAYJOB_PATH, rayjob(entrypoints="x"), field_validation=how
    )

    assert "entrypoints" not in made["spec"]
    assert headers.get("Warning") == warning


def test_warnings_name_the_path_of_an_unknown_field_by_default(api_client):
    body = rayjob()
    body["spec"]["rayClusterSpec"]["headGroupSpec"]["template"] = {
        "spec": {**TEMPLATE["spec"], "toleration": []}
    }
    api = kubernetes.client.CustomObjectsApi(api_client)

    _, _, headers = api.create_namespaced_custom_object_with_http_info(*RAYJOB_PATH, body)

    assert "spec.rayClusterSpec.headGroupSpec.template.spec.toleration" in headers["Warning"]


def test_an_unknown_metadata_field_is_refused_in_strict_mode(rayjobs):
    body = rayjob()
    body["metadata"]["lables"] = {}

    status = refused(400, rayjobs.create, body, field_validation="Strict")

    assert 'unknown field "metadata.lables"' in status["message"]


# 5


def test_defaults_are_filled_in(rayjobs):
    assert rayjobs.create(rayjob())["spec"]["backoffLimit"] == 0


# 6


@pytest.mark.parametrize(
    ("spec", "field", "reason", "words"),
    [
        ({"backoffLimit": "3"}, "spec.backoffLimit", "FieldValueTypeInvalid",
         'Invalid value: "string": spec.backoffLimit in body must be of type integer: "string"'),
        ({"suspend": 1}, "spec.suspend", "FieldValueTypeInvalid",
         'Invalid value: "integer": spec.suspend in body must be of type boolean: "integer"'),
        ({"rayClusterSpec": {"headGroupSpec": {"template": TEMPLATE, "rayStartParams": {"a": 1}}}},
         "spec.rayClusterSpec.headGroupSpec.rayStartParams.a", "FieldValueTypeInvalid", "string"),
        ({"rayClusterSpec": {}}, "spec.rayClusterSpec.headGroupSpec", "FieldValueRequired",
         "Required value"),
        ({"rayClusterSpec": {"headGroupSpec": {"template": TEMPLATE, "rayStartParams": {}},
                             "authOptions": {"mode": "tokens"}}},
         "spec.rayClusterSpec.authOptions.mode", "FieldValueNotSupported",
         'Unsupported value: "tokens": supported values: "disabled", "token"'),
    ],
)  # fmt: skip
def test_a_value_that_violates_the_schema_is_invalid(rayjobs, spec, field, reason, words):
    status = refused(422, rayjobs.create, rayjob(**spec))

    [cause] = status["details"]["causes"]
    assert (cause["field"], cause["reason"]) == (field, reason)
    assert words in cause["message"]
    assert status["message"].startswith(f'RayJob.ray.io "job" is invalid: {field}: ')


def test_a_malformed_quantity_is_a_bad_request(rayjobs):
    container = {**TEMPLATE["spec"]["containers"][0], "resources": {"limits": {"cpu": "two"}}}
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}

    status = refused(400, rayjobs.create, rayjob(rayClusterSpec={"headGroupSpec": head}))

    assert "quantities must match the regular expression" in status["message"]


# 7


@pytest.mark.parametrize("name", ["Job", "a_b", "-a", "a."])
def test_a_malformed_name_is_invalid(rayjobs, name):
    status = refused(422, rayjobs.create, rayjob(name))

    [cause] = status["details"]["causes"]
    assert cause["field"] == "metadata.name"
    assert "a lowercase RFC 1123 subdomain must consist of" in cause["message"]


@pytest.mark.parametrize("value", ["a" * 64, "a b", "-a"])
def test_a_malformed_label_is_invalid(rayjobs, value):
    body = rayjob()
    body["metadata"]["labels"] = {"team": value}

    [cause] = refused(422, rayjobs.create, body)["details"]["causes"]

    assert cause["field"] == "metadata.labels"


def test_annotations_are_limited_to_256_kib(rayjobs):
    rayjobs.create(rayjob())
    most = "x" * (256 * 1024 - 1)

    rayjobs.patch({"metadata": {"annotations": {"a": most}}})
    [cause] = refused(422, rayjobs.patch, {"metadata": {"annotations": {"a": most + "x"}}})[
        "details"
    ]["causes"]

    assert cause["reason"] == "FieldValueTooLong"


# 8


def test_creating_an_existing_name_is_a_conflict(rayjobs):
    rayjobs.create(rayjob())

    status = refused(409, rayjobs.create, rayjob())

    assert status["reason"] == "AlreadyExists"
    assert status["message"] == 'rayjobs.ray.io "job" already exists'
    assert status["details"] == {"name": "job", "group": "ray.io", "kind": "rayjobs"}


def test_generate_name_creates_a_name(rayjobs):
    body = rayjob()
    body["metadata"] = {"generateName": "job-"}

    names = {rayjobs.create(body)["metadata"]["name"] for _ in range(3)}

    assert len(names) == 3
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


def test_a_missing_object_is_not_found(rayjobs):
    status = refused(404, rayjobs.get)

    assert (status["reason"], status["message"]) == (
        "NotFound",
        'rayjobs.ray.io "job" not found',
    )


def test_a_missing_namespace_is_not_found(core):
    status = refused(404, core.create_namespaced_pod, "nowhere", pod())

    assert status["message"] == 'namespaces "nowhere" not found'


# 9


def test_a_stale_version_is_a_conflict(rayjobs):
    first = rayjobs.create(rayjob())
    rayjobs.patch({"metadata": {"labels": {"team": "b"}}})

    status = refused(409, rayjobs.replace, first)

    assert status["reason"] == "Conflict"
    assert "the object has been modified; please apply your changes" in status["message"]
    patch = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}}
    assert refused(409, rayjobs.patch, patch)["reason"] == "Conflict"


def test_a_rayjob_is_not_replaced_without_its_version(rayjobs):
    rayjobs.create(rayjob())

    [cause] = refused(422, rayjobs.replace, rayjob())["details"]["causes"]

    assert cause["field"] == "metadata.resourceVersion"


# 10


def test_the_server_sets_the_metadata(rayjobs):
    made = rayjobs.create(rayjob())["metadata"]

    assert made["uid"]
    assert made["namespace"] == "default"
    created = datetime.fromisoformat(made["creationTimestamp"])
    assert abs((datetime.now(UTC) - created).total_seconds()) < 60


def test_clients_cannot_write_fields_of_the_server(rayjobs):
    made = rayjobs.create(rayjob())

    patch = {
        "generation": 7,
        "creationTimestamp": None,
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }

    assert rayjobs.patch({"metadata": patch}) == made


def test_the_generation_counts_changes_of_the_spec(rayjobs):
    def generation(body):
        return rayjobs.patch(body)["metadata"]["generation"]

    rayjobs.create(rayjob())

    assert generation({"metadata": {"labels": {"team": "b"}}}) == 1
    assert generation({"spec": {"suspend": True}}) == 2


def test_an_unchanged_object_is_not_written(rayjobs):
    made = rayjobs.create(rayjob())

    assert rayjobs.patch({"spec": {"entrypoint": "true"}}) == made
    assert rayjobs.replace(made) == made


# 11


def test_the_status_is_written_separately_from_the_spec(rayjobs):
    made = rayjobs.create({**rayjob(), "status": {"jobStatus": "RUNNING"}})
    assert "jobStatus" not in made.get("status", {})

    both = {"status": {"jobStatus": "RUNNING"}, "spec": {"entrypoint": "false"}}
    patched = rayjobs.patch_status(both)
    assert (patched["status"]["jobStatus"], patched["spec"]["entrypoint"]) == ("RUNNING", "true")

    patched = rayjobs.patch({"status": {"jobStatus": "FAILED"}, "spec": {"entrypoint": "false"}})
    assert (patched["status"]["jobStatus"], patched["spec"]["entrypoint"]) == ("RUNNING", "false")

    patched["status"]["jobStatus"] = "SUCCEEDED"
    assert rayjobs.replace_status(patched)["status"]["jobStatus"] == "SUCCEEDED"
    assert rayjobs.get()["metadata"]["generation"] == 2


# 12


def test_null_in_a_merge_patch_removes_a_field(rayjobs):
    rayjobs.create(rayjob())

    patched = rayjobs.patch({"metadata": {"labels": {"team": None, "who": "me"}}})

    assert patched["metadata"]["labels"] == {"who": "me"}


def test_a_json_patch_is_applied_atomically(rayjobs, core):
    core.create_namespaced_pod("default", pod(labels={"a": "1"}))

    def patch(*operations):
        return core.patch_namespaced_pod("pod", "default", list(operations)).metadata.labels

    change = {"op": "replace", "path": "/metadata/labels/a", "value": "2"}
    add = {"op": "add", "path": "/metadata/labels/x~1y", "value": "3"}
    test = {"op": "test", "path": "/metadata/labels/a", "value": "1"}

    assert patch(test, change, add) == {"a": "2", "x/y": "3"}
    refused(422, patch, {"op": "remove", "path": "/metadata/labels/a"}, test)
    assert core.read_namespaced_pod("pod", "default").metadata.labels == {"a": "2", "x/y": "3"}


@pytest.mark.parametrize("media_type", ["strategic-merge-patch+json", "apply-patch+yaml"])
def test_a_rayjob_rejects_a_strategic_patch(rayjobs, media_type):
    rayjobs.create(rayjob())

    status = refused(415, rayjobs.patch, {"spec": {}}, _content_type=f"application/{media_type}")

    assert "application/json-patch+json, application/merge-patch+json" in status["message"]


# 13


def test_a_dry_run_answers_and_creates_nothing(rayjobs):
    assert rayjobs.create(rayjob(), dry_run="All")["metadata"]["uid"]
    refused(422, rayjobs.create, rayjob(backoffLimit="3"), dry_run="All")
    refused(404, rayjobs.get)

    made = rayjobs.create(rayjob())
    refused(409, rayjobs.create, rayjob(), dry_run="All")
    assert rayjobs.patch({"spec": {"suspend": True}}, dry_run="All")["spec"]["suspend"]
    rayjobs.delete(dry_run="All")
    assert rayjobs.get() == made


# 14


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("team=a", ["one"]),
        ("team==a,tier=x", []),
        ("team!=a", ["three", "two"]),
        ("team in (a, b),tier notin (y)", ["one"]),
        ("team", ["one", "two"]),
        ("!team", ["three"]),
    ],
)
def test_labels_are_selected_by_equality_and_by_set(rayjobs, selector, names):
    labels = {"one": {"team": "a"}, "two": {"team": "b", "tier": "y"}, "three": {}}
    for name, each in labels.items():
        rayjobs.create({**rayjob(), "metadata": {"name": name, "labels": each}})

    assert rayjobs.names(label_selector=selector) == names


def test_fields_are_selected_if_the_kind_supports_it(rayjobs, core):
    for name in ("one", "two"):
        rayjobs.create(rayjob(name))
        core.create_namespaced_pod("default", pod(name))

    def pods(selector):
        found = core.list_namespaced_pod("default", field_selector=selector)
        return [each.metadata.name for each in found.items]

    assert rayjobs.names(field_selector="metadata.name=one") == ["one"]
    assert pods("metadata.name!=one,status.phase=Pending") == ["two"]
    assert pods("spec.nodeName=node-1") == []
    status = refused(400, rayjobs.list, field_selector="spec.entrypoint=true")
    assert status["message"] == "field label not supported: spec.entrypoint"
    with pytest.raises(ApiException, match="field label not supported"):
        next(rayjobs.watch(field_selector="spec.entrypoint=true"))


def test_lists_cover_one_namespace_or_all(core):
    core.create_namespaced_pod("default", pod("one"))
    core.create_namespaced_pod("team", pod("two"))

    assert len(core.list_namespaced_pod("team").items) == 1
    assert len(core.list_pod_for_all_namespaces().items) == 2


# 15


def owned_pod(owner, name="pod"):
    reference = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": owner["metadata"]["name"],
                 "uid": owner["metadata"]["uid"], "blockOwnerDeletion": True}  # fmt: skip
    return pod(name, ownerReferences=[reference])


def removals(server, after):
    """Return the names of what was removed after a version, in order."""
    changes = [each for kind in (RAYJOBS, PODS) for each in server.store.changes(kind, after, 0)]
    changes.sort(key=lambda each: each.version)
    return [each.before["metadata"]["name"] for each in changes if each.after is None]


@pytest.mark.parametrize(
    ("policy", "names"),
    [("Background", ["job", "one", "two"]), ("Foreground", ["one", "two", "job"])],
)
def test_dependents_are_deleted_with_their_owner(api_server, rayjobs, core, policy, names):
    owner = rayjobs.create(rayjob())
    for name in ("one", "two"):
        core.create_namespaced_pod("default", owned_pod(owner, name))
    core.create_namespaced_pod("default", pod("other"))
    before = api_server.store.version

    rayjobs.delete(propagation_policy=policy)

    assert removals(api_server, before) == names
    assert [each.metadata.name for each in core.list_namespaced_pod("default").items] == ["other"]
    refused(404, rayjobs.get)


def test_dependents_of_dependents_are_deleted_before_them(api_server, rayjobs, core):
    owner = rayjobs.create(rayjob())
    child = rayjobs.create({**rayjob(), "metadata": owned_pod(owner, "child")["metadata"]})
    core.create_namespaced_pod("default", owned_pod(child))
    before = api_server.store.version

    rayjobs.delete(propagation_policy="Foreground")

    assert removals(api_server, before) == ["pod", "child", "job"]


def test_a_finalizer_keeps_an_object_until_it_is_removed(rayjobs):
    body = rayjob()
    body["metadata"]["finalizers"] = ["example.org/wait"]
    rayjobs.create(body)

    answer = rayjobs.delete()

    assert answer["metadata"]["deletionTimestamp"]
    assert rayjobs.get() == answer
    rayjobs.patch({"metadata": {"finalizers": None}})
    refused(404, rayjobs.get)


def test_an_immediate_deletion_returns_success_with_the_uid(rayjobs):
    made = rayjobs.create(rayjob())

    answer = rayjobs.delete()

    assert (answer["status"], answer["details"]["uid"]) == ("Success", made["metadata"]["uid"])


def test_another_uid_in_the_preconditions_is_a_conflict(rayjobs):
    made = rayjobs.create(rayjob())
    uid = made["metadata"]["uid"]

    body = {"preconditions": {"uid": "another"}}
    assert "UID in precondition: another" in refused(409, rayjobs.delete, body=body)["message"]
    rayjobs.delete(body={"preconditions": {"uid": uid}})


def test_all_selected_objects_can_be_deleted(core):
    for name, team in (("one", "a"), ("two", "a"), ("three", "b")):
        core.create_namespaced_pod("default", pod(name, labels={"team": team}))

    core.delete_collection_namespaced_pod("default", label_selector="team=a")

    assert [each.metadata.name for each in core.list_namespaced_pod("default").items] == ["three"]


# 16


def test_a_pod_on_a_node_is_deleted_when_its_kubelet_confirms(core):
    core.create_namespaced_pod("default", {**pod(), "spec": {**TEMPLATE["spec"],
                                                             "nodeName": "node-1"}})  # fmt: skip

    core.delete_namespaced_pod("pod", "default", grace_period_seconds=7)

    metadata = core.read_namespaced_pod("pod", "default").metadata
    assert metadata.deletion_grace_period_seconds == 7
    core.delete_namespaced_pod("pod", "default", grace_period_seconds=0)
    refused(404, core.read_namespaced_pod, "pod", "default")


# 17


def test_a_watch_starts_after_the_version_of_a_list(rayjobs):
    rayjobs.create(rayjob("one"))
    version = rayjobs.list()["metadata"]["resourceVersion"]
    rayjobs.create(rayjob("two"))
    rayjobs.patch({"spec": {"suspend": True}}, "two")
    rayjobs.delete("one")

    events = islice(rayjobs.watch(resource_version=version), 3)

    assert [(kind, found["metadata"]["name"]) for kind, found in events] == [
        ("ADDED", "two"),
        ("MODIFIED", "two"),
        ("DELETED", "one"),
    ]


def test_a_watch_without_a_version_begins_with_existing_objects(rayjobs):
    rayjobs.create(rayjob("one"))
    events = rayjobs.watch(timeout_seconds=5)

    assert next(events)[1]["metadata"]["name"] == "one"
    started = time.monotonic()
    creation = in_background(lambda: rayjobs.create(rayjob("two")))
    assert next(events)[1]["metadata"]["name"] == "two"
    assert time.monotonic() - started < 1
    creation.join()


def test_an_object_that_leaves_a_selection_is_deleted_for_its_watch(rayjobs):
    version = rayjobs.create(rayjob("one"))["metadata"]["resourceVersion"]
    rayjobs.create(rayjob("other"))
    for team in ("b", "b2", "a"):
        rayjobs.patch({"metadata": {"labels": {"team": team}}}, "one")

    events = rayjobs.watch(
        resource_version=version, label_selector="team=a", field_selector="metadata.name=one"
    )

    assert [kind for kind, _ in islice(events, 2)] == ["DELETED", "ADDED"]


# 18


def test_bookmarks_report_the_version_of_a_quiet_watch(rayjobs, core):
    version = rayjobs.create(rayjob())["metadata"]["resourceVersion"]
    core.create_namespaced_pod("default", pod())

    [*_, (kind, found)] = rayjobs.watch(
        resource_version=version, timeout_seconds=1, allow_watch_bookmarks=True
    )

    assert kind == "BOOKMARK"
    assert int(found["metadata"]["resourceVersion"]) > int(version)


# 19


def test_a_watch_from_an_expired_version_fails(api_server, rayjobs):
    version = rayjobs.create(rayjob())["metadata"]["resourceVersion"]
    rayjobs.create(rayjob("another"))
    api_server.store.forget_history()

    with pytest.raises(ApiException, match="Expired: too old resource version") as refusal:
        list(rayjobs.watch(resource_version=version, timeout_seconds=1))

    assert refusal.value.status == 410


# 20


def test_a_disconnected_watch_can_be_resumed(api_server, rayjobs):
    version = rayjobs.create(rayjob("one"))["metadata"]["resourceVersion"]
    events = rayjobs.watch(resource_version=version)
    rayjobs.create(rayjob("two"))
    _, seen = next(events)

    api_server.cut_watches()
    with pytest.raises(urllib3.exceptions.ProtocolError, match="ended prematurely"):
        next(events)
    rayjobs.create(rayjob("three"))

    again = rayjobs.watch(resource_version=seen["metadata"]["resourceVersion"])
    assert next(again)[1]["metadata"]["name"] == "three"


# 21


@pytest.fixture
def log(api_server, core):
    """Return the log of a pod that has written three lines."""
    core.create_namespaced_pod("default", pod())
    core.patch_namespaced_pod_status("pod", "default", {"status": {"phase": "Running"}},
                                     _content_type="application/merge-patch+json")  # fmt: skip
    log = api_server.log("default", "pod")
    for line in ("one", "two", "three"):
        log.append(line)
    return log


def test_logs_are_read_in_full_or_by_their_last_lines(core, log):
    assert core.read_namespaced_pod_log("pod", "default") == "one\ntwo\nthree\n"
    assert core.read_namespaced_pod_log("pod", "default", tail_lines=1) == "three\n"
    log.lines[0] = (time.time() - 100, "one")
    assert core.read_namespaced_pod_log("pod", "default", since_seconds=60) == "two\nthree\n"


def test_log_lines_can_have_timestamps(core, log):
    stamp, line = core.read_namespaced_pod_log("pod", "default", timestamps=True).split()[-2:]

    assert line == "three"
    assert abs(datetime.fromisoformat(stamp).timestamp() - log.lines[-1][0]) < 0.001


def test_a_log_is_followed_until_its_pod_ends(core, log):
    lines = kubernetes.watch.Watch().stream(
        core.read_namespaced_pod_log, "pod", "default", tail_lines=1
    )

    assert next(lines) == "three"
    log.append("four")
    assert next(lines) == "four"
    log.close()
    assert list(lines) == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (pod_states.CREATING, "ContainerCreating"),
        (pod_states.image_pull_back_off(), "trying and failing to pull image"),
    ],
)
def test_a_waiting_container_has_no_log(api_server, core, state, words):
    core.create_namespaced_pod("default", pod())
    status = state.of(TEMPLATE["spec"]["containers"][0])
    api_server.store.update(PODS, "default", "pod", lambda old: {**old, "status": status},
                            subresource="status")  # fmt: skip

    message = refused(400, core.read_namespaced_pod_log, "pod", "default")["message"]

    assert message == f'container "ray" in pod "pod" is waiting to start: {words}'


# 22


def test_an_exceeded_quota_reports_requested_used_and_limited(api_server, rayjobs):
    api_server.faults.append(quota_exceeded())

    message = refused(403, rayjobs.create, rayjob())["message"]

    assert message == (
        'rayjobs.ray.io "job" is forbidden: exceeded quota: team-quota, requested: '
        "count/rayjobs.ray.io=1, used: count/rayjobs.ray.io=2, limited: count/rayjobs.ray.io=2"
    )


def test_too_many_requests_include_a_retry_time(api_server, rayjobs):
    api_server.faults.append(Fault("create", status=429, times=1, retry_after_s=3))

    with pytest.raises(ApiException) as refusal:
        rayjobs.create(rayjob())

    assert refusal.value.headers["Retry-After"] == "3"
    rayjobs.create(rayjob())


def test_a_server_can_fail_a_few_times(api_server, rayjobs):
    api_server.faults.append(Fault("list", "rayjobs.ray.io", status=500, times=2))

    for _ in range(2):
        assert refused(500, rayjobs.list)["reason"] == "InternalError"
    assert rayjobs.names() == []


def test_an_answer_can_be_slow(api_server, rayjobs):
    api_server.faults.append(Fault(delay_s=0.5))

    with pytest.raises(urllib3.exceptions.HTTPError):
        rayjobs.create(rayjob(), _request_timeout=0.1)


def test_requests_are_counted(api_server, rayjobs):
    rayjobs.create(rayjob())
    rayjobs.names()

    assert api_server.requests == ["create rayjobs.ray.io", "list rayjobs.ray.io"]


# 23


def test_a_secret_is_returned_as_data(core):
    core.create_namespaced_secret("default", {"metadata": {"name": "s3"},
                                              "stringData": {"KEY": "abc"}})  # fmt: skip

    found = core.read_namespaced_secret("s3", "default")

    assert (found.data, found.string_data) == ({"KEY": base64.b64encode(b"abc").decode()}, None)


def test_quantities_of_pods_are_returned_as_strings(api_server, core):
    [container] = TEMPLATE["spec"]["containers"]
    container = {**container, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    # The client would not send it so; templates in a RayJob may have numbers.
    body = {**pod(), "spec": {"containers": [container]}}
    api_server.store.create(PODS, "default", body)

    found = core.read_namespaced_pod("pod", "default")

    assert found.spec.containers[0].resources.limits == {"nvidia.com/gpu": "1"}


# 24


def test_listing_deployments_of_all_namespaces_is_a_separate_permission(api_server, api_client):
    for namespace in ("default", "team"):
        body = {"metadata": {"name": "operator"}, "spec": {}}
        api_server.store.create(DEPLOYMENTS, namespace, body)
    api = kubernetes.client.CustomObjectsApi(api_client)

    def namespaces(call, *arguments):
        found = call("apps", "v1", *arguments, "deployments")["items"]
        return [each["metadata"]["namespace"] for each in found]

    assert namespaces(api.list_cluster_custom_object) == ["default", "team"]
    assert namespaces(api.list_namespaced_custom_object, "team") == ["team"]

    api_server.access.forbid("list", "deployments.apps", "")

    message = refused(403, namespaces, api.list_cluster_custom_object)["message"]
    assert message.endswith('in API group "apps" at the cluster scope')
    assert namespaces(api.list_namespaced_custom_object, "team") == ["team"]


# 25


def test_the_metadata_of_a_secret_can_be_requested_alone(api_client, core):
    core.create_namespaced_secret("default", {"metadata": {"name": "s3"}, "data": {"K": "YWJj"}})
    api_client.set_default_header(
        "Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    )

    answer = core.read_namespaced_secret("s3", "default", _preload_content=False)

    found = json.loads(answer.data)
    assert (found["kind"], found["metadata"]["name"]) == ("PartialObjectMetadata", "s3")
    assert "data" not in found


# 26


def test_a_kind_installed_by_an_operator_is_discovered(api_server, api_client):
    groups = kubernetes.client.ApisApi(api_client)
    resources = kubernetes.client.CustomObjectsApi(api_client)
    assert LOCAL_QUEUES.group not in {each.name for each in groups.get_api_versions().groups}

    api_server.resources.append(LOCAL_QUEUES)

    assert LOCAL_QUEUES.group in {each.name for each in groups.get_api_versions().groups}
    found = resources.get_api_resources(LOCAL_QUEUES.group, LOCAL_QUEUES.version).resources
    assert [each.name for each in found] == ["localqueues"]


# 27


class Echo:
    """A port of this machine that says what it is told, in capitals."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        in_background(self._work)

    def _work(self):
        connection, _ = self._listener.accept()
        with connection, self._listener:
            while data := connection.recv(1 << 20):
                connection.sendall(data.upper())


@pytest.fixture
def on_node(api_server, core):
    core.create_namespaced_pod("default", pod())
    api_server.store.update(
        PODS, "default", "pod",
        lambda old: {**old, "spec": {**old["spec"], "nodeName": "node-1"}},
    )  # fmt: skip


def forwarded(core, port, name="pod"):
    return kubernetes.stream.portforward(
        core.connect_get_namespaced_pod_portforward, name, "default", ports=str(port)
    )


def test_a_port_of_a_pod_is_forwarded(api_server, core, on_node):
    echo = Echo()
    api_server.ports[80] = echo.port

    with contextlib.closing(forwarded(core, 80).socket(80)) as connection:
        connection.settimeout(10)
        sent = b"abc" * 100_000
        in_background(lambda: connection.sendall(sent))
        received = b""
        while len(received) < len(sent):
            received += connection.recv(1 << 20)

    assert received == sent.upper()


def test_forwarding_to_a_closed_port_reports_the_reason(core, on_node):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    forward = forwarded(core, port)

    with contextlib.closing(forward.socket(port)) as connection:
        connection.settimeout(10)
        assert connection.recv(1) == b""

    assert "Connection refused" in forward.error(port)


@pytest.mark.parametrize("verb", ["get", "create"])
def test_port_forwarding_without_permission_is_refused(api_server, core, on_node, verb):
    api_server.access.forbid(verb, "pods/portforward")

    with pytest.raises(ApiException, match="Handshake status 403 Forbidden"):
        forwarded(core, 80)


def test_an_unscheduled_pod_has_no_ports(core):
    core.create_namespaced_pod("default", pod())

    with pytest.raises(ApiException, match="does not have a host assigned"):
        forwarded(core, 80)
