"""What the server checks of an object before it takes it: its names, and a custom kind's schema.

Of a custom kind, unknown fields are refused or removed and defaults are filled in; its rules in CEL
are not read. Built-in kinds are taken as they are.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jsonschema
from tests.cluster.api_server import replies
from tests.cluster.api_server.resources import PODS, SECRETS

if TYPE_CHECKING:
    from tests.cluster.api_server.resources import Object, Resource

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_ANNOTATIONS_BYTES = 256 * 1024
_METADATA = {
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp",
    "finalizers", "generateName", "generation", "labels", "managedFields", "name", "namespace",
    "ownerReferences", "resourceVersion", "selfLink", "uid",
}  # fmt: skip
_QUANTITY = r"^(\+|-)?"


def check_metadata(resource: Resource, new: Object) -> None:
    """Refuse names, labels and annotations that no server takes."""
    metadata = new["metadata"]
    for field in ("labels", "annotations"):
        for value in (metadata.get(field) or {}).values():
            if not isinstance(value, str):
                kind = "bool" if isinstance(value, bool) else "number"
                raise replies.bad_request(
                    f'{resource.kind} in version "{resource.version}" cannot be handled as a '
                    f"{resource.kind}: json: cannot unmarshal {kind} into Go struct field "
                    f"ObjectMeta.metadata.{field} of type string"
                )
    causes = list(_wrong_metadata(metadata))
    if causes:
        raise replies.invalid(resource, metadata.get("name", ""), causes)


def convert(resource: Resource, new: Object) -> None:
    """Write what clients may write in two ways in the one that a server returns."""
    if resource is SECRETS:
        data = new.setdefault("data", {})
        for name, value in new.pop("stringData", {}).items():
            data[name] = base64.b64encode(value.encode()).decode()
    elif resource is PODS:
        for container in new.get("spec", {}).get("containers", []):
            for quantities in container.get("resources", {}).values():
                if isinstance(quantities, dict):
                    quantities |= {name: str(each) for name, each in quantities.items()}


def _wrong_metadata(metadata: Object) -> Iterator[Object]:
    name = metadata.get("name")
    if not name:
        message = "Required value: name or generateName is required"
        yield replies.cause("Required", "metadata.name", message)
    elif not re.fullmatch(_SUBDOMAIN, name):
        message = (
            f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case '
            "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric "
            "character (e.g. 'example.com', regex used for validation is "
            rf"'{_LABEL}(\.{_LABEL})*')"
        )
        yield replies.cause("Invalid", "metadata.name", message)
    for value in (metadata.get("labels") or {}).values():
        if len(value) > 63:
            message = f'Invalid value: "{value}": must be no more than 63 bytes'
            yield replies.cause("Invalid", "metadata.labels", message)
        elif not re.fullmatch(_LABEL_VALUE, value):
            message = (
                f'Invalid value: "{value}": a valid label must be an empty string or consist of '
                "alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
                "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            )
            yield replies.cause("Invalid", "metadata.labels", message)
    annotations = metadata.get("annotations") or {}
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS_BYTES:
        message = f"Too long: may not be more than {_ANNOTATIONS_BYTES} bytes"
        yield replies.cause("TooLong", "metadata.annotations", message)


class Schema:
    """A custom kind's schema, in the words of JSON Schema as `tests.cluster.crd` returns it."""

    def __init__(self, resource: Resource, schema: Object) -> None:
        self._resource = resource
        # Of each object's own metadata a CRD says nothing.
        self._schema = {**schema, "properties": {**schema["properties"], "metadata": {}}}
        self._validator = jsonschema.Draft202012Validator(self._schema)

    def remove_unknown(self, new: Object, field_validation: str) -> list[str]:
        """Remove fields that the schema does not have, and return warnings about them.

        Raises:
            Refusal: There are some, and `fieldValidation=Strict`.
        """
        unknown = list(_removed(self._schema, new, ""))
        metadata = new.get("metadata", {})
        for name in sorted(metadata.keys() - _METADATA):
            del metadata[name]
            unknown.append(f"metadata.{name}")
        said = [f'unknown field "{path}"' for path in unknown]
        if said and field_validation == "Strict":
            kind = self._resource.kind
            raise replies.bad_request(
                f'{kind} in version "{self._resource.version}" cannot be handled as a {kind}: '
                f"strict decoding error: {', '.join(said)}"
            )
        return said if field_validation == "Warn" else []

    def check(self, new: Object) -> None:
        """Fill in defaults, then refuse what is against the schema."""
        _fill_in(self._schema, new)
        errors = list(self._validator.iter_errors(new))
        for error in errors:
            if error.validator == "pattern" and error.validator_value.startswith(_QUANTITY):
                # Seen so: 400, though the schema is violated.
                raise replies.bad_request(
                    f"{_path(error)}: quantities must match the regular expression "
                    "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                )
        causes = [each for error in errors for each in _causes(error)]
        if causes:
            raise replies.invalid(self._resource, new["metadata"].get("name", ""), causes)


def _removed(schema: Object, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list) and "items" in schema:
        for number, each in enumerate(value):
            yield from _removed(schema["items"], each, f"{path}[{number}]")
    elif isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name in list(value):
            where = f"{path}.{name}" if path else name
            if name in known:
                yield from _removed(known[name], value[name], where)
            elif isinstance(others, dict):
                yield from _removed(others, value[name], where)
            elif others is False:
                del value[name]
                yield where


def _fill_in(schema: Object, value: Any) -> None:
    if isinstance(value, list) and "items" in schema:
        for each in value:
            _fill_in(schema["items"], each)
    elif isinstance(value, dict):
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            for each in value.values():
                _fill_in(others, each)
        for name, inner in schema.get("properties", {}).items():
            if "default" in inner and value.get(name) is None:
                value[name] = copy.deepcopy(inner["default"])
            if name in value:
                _fill_in(inner, value[name])


def _path(error: jsonschema.ValidationError) -> str:
    parts = (f"[{each}]" if isinstance(each, int) else f".{each}" for each in error.absolute_path)
    return "".join(parts).lstrip(".")


def _causes(error: jsonschema.ValidationError) -> Iterator[Object]:
    """Say what is wrong as a server does."""
    field, wanted = _path(error), error.validator_value
    value = json.dumps(error.instance)
    if error.validator == "required":
        for name in wanted:
            if name not in error.instance:
                missing = f"{field}.{name}".lstrip(".")
                yield replies.cause("Required", missing, "Required value")
        return
    if error.validator in {"type", "anyOf"}:
        kind = "integer or string" if error.validator == "anyOf" else wanted
        kind = kind[0] if isinstance(kind, list) else kind
        got = json.dumps(
            {
                str: "string",
                bool: "boolean",
                int: "integer",
                float: "number",
                list: "array",
                dict: "object",
            }.get(type(error.instance), "null")
        )
        said = f"Invalid value: {got}: {field} in body must be of type {kind}: {got}"
        yield replies.cause("TypeInvalid", field, said)
    elif error.validator == "enum":
        listed = ", ".join(json.dumps(each) for each in wanted)
        said = f"Unsupported value: {value}: supported values: {listed}"
        yield replies.cause("NotSupported", field, said)
    elif error.validator in {"maxLength", "maxItems"}:
        kind = "TooLong" if error.validator == "maxLength" else "TooMany"
        yield replies.cause(kind, field, f"Too long: may not be more than {wanted}")
    else:
        words = {
            "pattern": "match",
            "minimum": "be greater than or equal to",
            "maximum": "be less than or equal to",
        }.get(error.validator, error.validator)
        wanted = f"'{wanted}'" if error.validator == "pattern" else wanted
        said = f"Invalid value: {value}: {field} in body should {words} {wanted}"
        yield replies.cause("Invalid", field, said)
