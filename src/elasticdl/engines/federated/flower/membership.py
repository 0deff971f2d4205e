"""Which connection is which party: a value that changes, and nothing else.

Flower knows nodes by numbers. A node whose key the aggregator registered for a party *is* that
party. Without keys (on one machine) a newcomer is asked for its name once:

    online --asked--> named --vanished--> forgotten
                 '--> refused: somebody online has this name; named when that one has vanished

Callers: `parties.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Membership:
    """See the module.

    Attributes:
        registered: Names of nodes by their keys; if there are any, nodes are never asked.
        online: The nodes that Flower says are connected.
        told: What nodes without a registered key said their name is, in the order they said it.
    """

    registered: Mapping[int, str] = field(default_factory=dict)
    online: frozenset[int] = frozenset()
    told: Mapping[int, str] = field(default_factory=dict)

    def now(self, online: Iterable[int]) -> Membership:
        """Return the membership when these are online; who has gone says its name again."""
        nodes = frozenset(online)
        told = {node: name for node, name in self.told.items() if node in nodes}
        return replace(self, online=nodes, told=told)

    def introduced(self, node: int, name: str) -> Membership:
        """Return the membership after a node has said its name."""
        if node not in self.online or node in self.told:
            return self
        return replace(self, told={**self.told, node: name})

    @property
    def nodes(self) -> dict[str, int]:
        """The node of each party that is here. Of several that say one name, the first has it."""
        if self.registered:
            named = {node: name for node, name in self.registered.items() if node in self.online}
        else:
            named = dict(self.told)
        nodes: dict[str, int] = {}
        for node, name in named.items():
            nodes.setdefault(name, node)
        return nodes

    @property
    def strangers(self) -> frozenset[int]:
        """The nodes that must be asked for their names."""
        if self.registered:
            return frozenset()
        return self.online - self.told.keys()

    @property
    def refused(self) -> dict[int, str]:
        """The nodes that say a name which another one has, and that name."""
        holders = self.nodes
        return {node: name for node, name in self.told.items() if holders[name] != node}
