"""Which right a request to the API server needs (RBAC, "Request Verb", "Referring to resources")."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/[^/]+(?=/))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/?]+))?(?:/(?P<part>[a-z]+)(?:(?<=/proxy)/.+)?)?"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Right(NamedTuple):
    """One verb on one resource of an API group."""

    group: str
    resource: str
    verb: str


def right_of(method: str, path: str, query: Mapping[str, str]) -> Right:
    match = _PATH.fullmatch(path)
    assert match is not None, path
    resource = "/".join(filter(None, (match["resource"], match["part"])))
    verb = _VERBS.get(method)
    if verb is None:
        assert method == "GET", method
        many = "watch" if query.get("watch") == "true" else "list"
        verb = "get" if match["name"] else many
    return Right(match["group"] or "", resource, verb)


def applied_rights(right: Right) -> set[Right]:
    """Return what server-side apply of an object needs that may not be there yet."""
    return {right, right._replace(verb="create")}


def rights_in(rules: Iterable[Mapping[str, Any]]) -> list[Right]:
    """Return every right of a role, twice what it gives twice."""
    return [
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
