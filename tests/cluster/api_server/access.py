"""Who may do what, and the faults that a test has switched on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.cluster.api_server import replies

if TYPE_CHECKING:
    from tests.cluster.api_server.resources import Object, Resource

ANONYMOUS = "system:anonymous"


class Access:
    """Rules about verbs and resources; the last one that applies decides, and all is allowed first.

    A resource is named as in a role, with its group behind it: `rayjobs.ray.io`, `pods/log`.
    """

    def __init__(self) -> None:
        self._rules: list[tuple[bool, str, str, str]] = []

    def allow(self, verb: str = "*", resource: str = "*", namespace: str = "*") -> None:
        self._rules.append((True, verb, resource, namespace))

    def forbid(self, verb: str = "*", resource: str = "*", namespace: str = "*") -> None:
        self._rules.append((False, verb, resource, namespace))

    def is_allowed(self, verb: str, resource: str, namespace: str) -> bool:
        asked = (verb, resource, namespace)
        for allowed, *rule in reversed(self._rules):
            if all(wanted in {"*", got} for wanted, got in zip(rule, asked, strict=True)):
                return allowed
        return True

    def check(self, user: str, verb: str, resource: Resource, subresource: str, namespace: str,
              name: str) -> None:  # fmt: skip
        """Raise unless a user may do it; a client without a token may do nothing."""
        suffix = f"/{subresource}" if subresource else ""
        qualified = resource.qualified + suffix
        if user != ANONYMOUS and self.is_allowed(verb, qualified, namespace):
            return
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        raise replies.forbidden(
            resource,
            name,
            f'User "{user}" cannot {verb} resource "{resource.plural}{suffix}" in API group '
            f'"{resource.group}" {where}',
        )

    def review(self, spec: Object) -> Object:
        """Return the status of a SelfSubjectAccessReview."""
        asked = spec.get("resourceAttributes") or {}
        group = f".{asked['group']}" if asked.get("group") else ""
        part = f"/{asked['subresource']}" if asked.get("subresource") else ""
        resource = f"{asked.get('resource', '*')}{group}{part}"
        return {
            "allowed": self.is_allowed(asked.get("verb", "*"), resource, asked.get("namespace", ""))
        }


@dataclass
class Fault:
    """Something that goes wrong with the next requests that it applies to.

    Attributes:
        status: Code of the answer; None answers as usual.
        times: How many requests it applies to.
        delay_s: How long each of them waits first.
        retry_after_s: What an answer of 429 says.
        message: Why, in an answer of 403.
    """

    verb: str = "*"
    resource: str = "*"
    status: int | None = None
    times: float = float("inf")
    delay_s: float = 0.0
    retry_after_s: int = 1
    message: str = ""

    def strike(self, verb: str, resource: Resource, name: str) -> None:
        """Raise or wait if it applies to a request."""
        if self.verb not in {"*", verb} or self.resource not in {"*", resource.qualified}:
            return
        if self.times < 1:
            return
        self.times -= 1
        time.sleep(self.delay_s)
        if self.status == 429:
            raise replies.too_many_requests(self.retry_after_s)
        if self.status == 403:
            raise replies.forbidden(resource, name, self.message)
        if self.status is not None:
            raise replies.internal_error("etcdserver: request timed out")


def quota_exceeded(resource: str = "rayjobs.ray.io", most: int = 2) -> Fault:
    """Return the fault of a namespace whose quota has no room for one more."""
    count = f"count/{resource}"
    message = (
        f"exceeded quota: team-quota, requested: {count}=1, used: {count}={most}, "
        f"limited: {count}={most}"
    )
    return Fault("create", resource, 403, message=message)
