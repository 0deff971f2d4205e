"""What the server answers when it does not do what was asked: `Status` bodies, word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.api_server.resources import Object, Resource


class Refusal(Exception):  # noqa: N818 - an answer, not an error of the server
    """A reply with a status code of 400 and up."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Object | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.headers = headers or {}
        self.body: Object = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details or {}, "code": code,
        }  # fmt: skip


def cause(kind: str, field: str, message: str) -> Object:
    """Return one entry of `details.causes`; `kind` is the reason without `FieldValue`."""
    return {"reason": f"FieldValue{kind}", "field": field, "message": message}


def success(resource: Resource, name: str, uid: str) -> Object:
    details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": details}  # fmt: skip


def _details(resource: Resource, name: str) -> Object:
    return {"name": name, "group": resource.group, "kind": resource.plural}


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str) -> Refusal:
    subject = f'{resource.qualified} "{name}"' if name else resource.qualified
    return Refusal(403, "Forbidden", f"{subject} is forbidden: {why}", _details(resource, name))


def not_found(resource: Resource, name: str) -> Refusal:
    message = f'{resource.qualified} "{name}" not found'
    return Refusal(404, "NotFound", message, _details(resource, name))


def already_exists(resource: Resource, name: str) -> Refusal:
    message = f'{resource.qualified} "{name}" already exists'
    return Refusal(409, "AlreadyExists", message, _details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> Refusal:
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return Refusal(409, "Conflict", message, _details(resource, name))


def gone(asked: int, oldest: int) -> Refusal:
    return Refusal(410, "Expired", f"too old resource version: {asked} ({oldest})")


def unsupported_media_type(accepted: list[str]) -> Refusal:
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted)
    )
    return Refusal(415, "UnsupportedMediaType", message)


def invalid(resource: Resource, name: str, causes: list[Object]) -> Refusal:
    said = [f"{each['field']}: {each['message']}" for each in causes]
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    listed = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    details = {"name": name, "group": resource.group, "kind": resource.kind, "causes": causes}
    return Refusal(422, "Invalid", f'{kind} "{name}" is invalid: {listed}', details)


def too_many_requests(retry_after_s: int) -> Refusal:
    return Refusal(
        429,
        "TooManyRequests",
        "Too many requests, please try again later.",
        {"retryAfterSeconds": retry_after_s},
        {"Retry-After": str(retry_after_s)},
    )


def internal_error(message: str) -> Refusal:
    return Refusal(500, "InternalError", f"Internal error occurred: {message}")
