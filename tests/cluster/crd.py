"""The schema of KubeRay's RayJob as a JSON schema, strict as a server that knows the CRD is."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

# Of KubeRay's release; not part of this repository.
_PLACES = [Path(__file__).parents[3] / "shared/data/kuberay", Path("/usr/share/kuberay")]


@functools.cache
def rayjob_schema() -> dict[str, Any]:
    """Return the schema; skips the test where the CRD is not at hand."""
    for folder in _PLACES:
        path = folder / "ray.io_rayjobs.yaml"
        if path.exists():
            loaded = yaml.load(
                path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            )
            version = next(each for each in loaded["spec"]["versions"] if each["name"] == "v1")
            return _strict(version["schema"]["openAPIV3Schema"])
    pytest.skip("KubeRay's CRDs are not at hand")


def _strict(schema: Any) -> Any:
    """Return what OpenAPI says in the words of JSON Schema; unknown fields are errors."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key == "properties":
            made[key] = {name: _strict(each) for name, each in value.items()}
        elif key in {"default", "enum", "required", "example"}:
            made[key] = value
        else:
            made[key] = _strict(value)
    if made.pop("x-kubernetes-int-or-string", False):
        made.pop("type", None)
        made.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if made.pop("nullable", False) and "type" in made:
        made["type"] = [made["type"], "null"]
    is_open = made.pop("x-kubernetes-preserve-unknown-fields", False)
    if "properties" in made and "additionalProperties" not in made and not is_open:
        made["additionalProperties"] = False
    return made
