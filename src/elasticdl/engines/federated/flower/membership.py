"""Membership: which Flower node belongs to which party, as an immutable value.

Flower identifies nodes by numbers. With keys, a node belongs to the party for which its key was
registered. Without keys (on one machine), each new node receives one request for its name:

    online --request--> named --vanished--> forgotten
                   '--> refused: another online node has the name; named once that one vanished

Callers: `exchange.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Membership:
    """The Flower nodes that are connected, and the party that each belongs to.

    Attributes:
        registered: Node -> name of the party for which the node's key was registered. Empty without
            keys; only then do nodes receive requests for their names.
        online: The nodes that Flower reports as connected.
        given: Node -> the name with which it answered a request for its name, in order of arrival.
    """

    registered: Mapping[int, str] = field(default_factory=dict)
    online: frozenset[int] = frozenset()
    given: Mapping[int, str] = field(default_factory=dict)

    def with_online(self, online: Iterable[int]) -> Membership:
        """Return a copy in which exactly these nodes are online; forget other nodes' names."""
        nodes = frozenset(online)
        given = {node: name for node, name in self.given.items() if node in nodes}
        return replace(self, online=nodes, given=given)

    def with_name(self, node: int, name: str) -> Membership:
        """Return a copy with a node's name; no change if it is offline or has a name already."""
        if node not in self.online or node in self.given:
            return self
        return replace(self, given={**self.given, node: name})

    @property
    def nodes(self) -> dict[str, int]:
        """Connected party -> its node; if several nodes have the same name, the first of them."""
        if self.registered:
            named = {node: name for node, name in self.registered.items() if node in self.online}
        else:
            named = dict(self.given)
        nodes: dict[str, int] = {}
        for node, name in named.items():
            nodes.setdefault(name, node)
        return nodes

    @property
    def unnamed_nodes(self) -> frozenset[int]:
        """The nodes that have not given their names yet."""
        if self.registered:
            return frozenset()
        return self.online - self.given.keys()

    @property
    def refused(self) -> dict[int, str]:
        """Nodes refused because another online node has their name: node -> that name."""
        holders = self.nodes
        return {node: name for node, name in self.given.items() if holders[name] != node}
