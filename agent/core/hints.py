"""Hints of the CPU and memory managers, and their merge by the topology manager.

A `HintList` is the whole list that the kubelet would enumerate for one resource, kept as a rule:
a family of node masks, a few listed masks, and which of them are preferred.  The merge finds what
``HintMerger.Merge`` (pkg/kubelet/cm/topologymanager/policy.go) would find among all combinations of
one hint a list, by the rules that its walk reduces to (kubelet-semantics 6.3), without making the
combinations.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from agent.core.masks import (
    Distances,
    Loose,
    ascending,
    closest,
    lowest,
    node_bits,
    smallest_size,
    total_distance,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HintList:
    """Every hint of one resource.

    A mask is a hint if it is ``listed`` or the ``loose`` family admits it; it is preferred if it has
    ``preferred_size`` nodes, or touches ``preferred_sockets`` sockets (``align-by-socket``).
    """

    preferred_size: int
    loose: Loose | None = None
    listed: frozenset[int] = frozenset()
    preferred_sockets: int = 0
    sockets_of_node: Mapping[int, int] = field(default_factory=dict)
    """Bit of a node -> bits of the sockets that its CPUs are in."""

    def contains(self, mask: int) -> bool:
        """Tell whether this mask is a hint."""
        return mask in self.listed or (self.loose is not None and self.loose.admits(mask))

    def prefers(self, mask: int) -> bool:
        """Tell whether a hint with this mask is preferred."""
        if mask.bit_count() == self.preferred_size:
            return True
        return bool(self.preferred_sockets) and self._sockets(mask) == self.preferred_sockets

    def has_superset(self, mask: int) -> bool:
        """Tell whether some hint contains all nodes of ``mask``."""
        if any(not mask & ~listed for listed in self.listed):
            return True
        return (
            self.loose is not None
            and not mask & ~self.loose.universe
            and self.loose.admits(self.loose.universe)
        )

    @property
    def is_empty(self) -> bool:
        """Tell whether no mask is a hint."""
        loose = self.loose
        return not self.listed and (loose is None or not loose.admits(loose.universe))

    def smallest(self) -> int | None:
        """Return the size of the smallest hint, None where there is no hint."""
        sizes = [m.bit_count() for m in self.listed]
        loose = smallest_size(self.loose) if self.loose is not None else None
        return min(sizes if loose is None else [*sizes, loose], default=None)

    def enumerate(self) -> Iterator[tuple[int, bool]]:
        """Yield (mask, preferred) as the kubelet lists them: by size, then by position of the nodes.

        Exponential in the number of nodes: for explanations and tests, not for decisions.
        """
        universe = self.loose.universe if self.loose is not None else 0
        for listed in self.listed:
            universe |= listed
        nodes = node_bits(universe)
        for size in range(1, len(nodes) + 1):
            for members in combinations(nodes, size):
                mask = sum(members)
                if self.contains(mask):
                    yield mask, self.prefers(mask)

    def _sockets(self, mask: int) -> int:
        sockets = 0
        for bit in node_bits(mask):
            sockets |= self.sockets_of_node.get(bit, 0)
        return sockets.bit_count()


@dataclass(frozen=True, slots=True)
class Offer:
    """What one provider gives the merger.

    ``hints`` None is "no preference".  Otherwise the same hints stand for each of ``resources``; a
    list without any hint is "cannot be satisfied".
    """

    provider: str
    resources: tuple[str, ...] = ()
    hints: HintList | None = None

    @property
    def unsatisfiable(self) -> bool:
        """Tell whether the provider says that the request cannot be satisfied."""
        return self.hints is not None and self.hints.is_empty


UNSATISFIABLE = HintList(preferred_size=0)


@dataclass(frozen=True, slots=True)
class Merged:
    """The best hint: ``mask`` is None for "any NUMA node"."""

    mask: int | None
    preferred: bool


@dataclass(frozen=True, slots=True)
class Merger:
    """Merges offers on a machine with the nodes of ``full``; ``distances`` only where they count."""

    full: int
    distances: Distances | None = None

    def merge(self, offers: Sequence[Offer]) -> Merged:
        """Return the best hint over all combinations, for best-effort."""
        best = self.merge_preferred(offers)
        if best.preferred:
            return best
        lists = [o for o in offers if o.hints is not None and not o.unsatisfiable]
        copies = [o.hints for o in lists if o.hints is not None for _ in o.resources]
        other = self._best_other(copies) if copies else None
        return Merged(self.full if other is None else other, preferred=False)

    def merge_preferred(self, offers: Sequence[Offer]) -> Merged:
        """Return the best hint for restricted, which asks no further where none is preferred."""
        if any(o.unsatisfiable for o in offers):
            return Merged(None, preferred=False)
        best = self._best_preferred([o.hints for o in offers if o.hints is not None])
        return Merged(best, preferred=best is not None)

    def merge_single_node(self, offers: Sequence[Offer]) -> Merged:
        """Return the best hint for single-numa-node: one preferred node, or any."""
        hints = [o.hints for o in offers if o.hints is not None]
        if not hints:
            return Merged(None, preferred=True)
        for bit in node_bits(self.full):
            if all(h.contains(bit) and h.prefers(bit) for h in hints):
                return Merged(None if bit == self.full else bit, preferred=True)
        return Merged(None, preferred=False)

    def _best_preferred(self, lists: Sequence[HintList]) -> int | None:
        """Return the best mask that is a preferred hint of every list."""
        if not lists:
            return self.full
        fixed = {h.preferred_size for h in lists if not h.preferred_sockets}
        if len(fixed) > 1:
            return None
        sizes = fixed or range(1, self.full.bit_count() + 1)
        listed = {m for h in lists for m in h.listed if all(g.contains(m) for g in lists)}
        loose = lists[0].loose
        for h in lists[1:]:
            loose = loose & h.loose if loose is not None and h.loose is not None else None
        for size in sorted(sizes):
            found = set(listed)
            if loose is not None:
                found |= self._preferred_in_scopes(loose, lists, size)
            best = self._best(None, found, size, lambda m: all(h.prefers(m) for h in lists))
            if best is not None:
                return best
        return None

    def _preferred_in_scopes(self, loose: Loose, lists: Sequence[HintList], size: int) -> set[int]:
        masks = (
            self._best(
                loose & Loose(scope, ()), set(), size, lambda m: all(h.prefers(m) for h in lists)
            )
            for scope in self._scopes(lists, size)
        )
        return {m for m in masks if m is not None}

    def _scopes(self, lists: Sequence[HintList], size: int) -> list[int]:
        """Return where to look for preferred masks: everywhere, or in as many sockets as preferred."""
        h = next((h for h in lists if h.preferred_sockets and h.preferred_size != size), None)
        if h is None:
            return [self.full]
        by_socket: dict[int, int] = {}
        for node, sockets in h.sockets_of_node.items():
            for socket in node_bits(sockets):
                by_socket[socket] = by_socket.get(socket, 0) | node
        largest = sorted((nodes.bit_count() for nodes in by_socket.values()), reverse=True)
        most_sockets = size * max(sockets.bit_count() for sockets in h.sockets_of_node.values())
        if size > sum(largest[: h.preferred_sockets]) or most_sockets < h.preferred_sockets:
            return []
        return [
            functools.reduce(operator.or_, nodes)
            for nodes in combinations(by_socket.values(), h.preferred_sockets)
        ]

    def _best(
        self, loose: Loose | None, listed: set[int], size: int, accept: Callable[[int], bool]
    ) -> int | None:
        """Return the best accepted mask of one size out of a family and some listed masks."""
        found = [m for m in listed if m.bit_count() == size and accept(m)]
        if loose is not None:
            if self.distances is None:
                mask = lowest(loose, size, accept)
            else:
                mask = closest(loose, size, self.distances, accept)
            found += [] if mask is None else [mask]
        if self.distances is None:
            return min(found, default=None)
        distances = self.distances
        return min(found, key=lambda m: (total_distance(m, distances), m), default=None)

    def _best_other(self, copies: Sequence[HintList]) -> int | None:
        """Return the best mask that is the intersection of one hint of each list."""
        wanted = max(h.smallest() or 0 for h in copies)
        most = self.full.bit_count()
        for size in (*range(wanted, 0, -1), *range(wanted + 1, most + 1)):
            best = self._best_intersection(copies, size)
            if best is not None:
                return best
        return None

    def _best_intersection(self, copies: Sequence[HintList], size: int) -> int | None:
        """Return the best intersection with ``size`` nodes."""
        found: set[int] = set()
        for left, families in self._regions(copies, size):
            if not families:
                found.add(left)
                continue
            if len(families) == 1:
                # Its mask may go on outside, where the others let nothing through.
                best = self._best(families[0].inside(left), set(), size, lambda _: True)
            else:
                best = self._best(
                    Loose(left, ()), set(), size, lambda m: is_intersection(m, copies)
                )
            found |= set() if best is None else {best}
        return self._best(None, found, size, lambda _: True)

    def _regions(
        self, copies: Sequence[HintList], size: int
    ) -> Iterator[tuple[int, Sequence[Loose]]]:
        """Yield where the intersections with ``size`` nodes are.

        Each list gives a listed mask or one of its family.  Yielded is what the listed masks and
        the families' universes leave, with the families that may cut more out of it.
        """
        regions: set[tuple[int, frozenset[int]]] = {(self.full, frozenset())}
        for i, h in enumerate(copies):
            choices = [(m, frozenset[int]()) for m in h.listed]
            if h.loose is not None and h.loose.admits(h.loose.universe):
                choices.append((h.loose.universe, frozenset({i})))
            regions = {
                (left & mask, families | family)
                for left, families in regions
                for mask, family in choices
                if (left & mask).bit_count() >= size
            }
        for left, families in regions:
            cutting = (copies[i].loose for i in families)
            yield left, [loose for loose in cutting if loose is not None]


def is_intersection(mask: int, lists: Sequence[HintList]) -> bool:
    """Tell whether one hint of each list can be chosen so that together they leave exactly ``mask``.

    If the mask itself is a hint of one list, the others only need hints around it.  Otherwise hints
    around it are chosen list by list, smallest first, until what they share outside is gone; a
    family that is closed upwards goes last, since there one look answers.
    """
    if not all(h.has_superset(mask) for h in lists):
        return False
    if any(h.contains(mask) for h in lists):
        return True
    ordered = sorted(lists, key=lambda h: (not h.listed and h.loose is not None, id(h)))
    everything = 0
    for h in ordered:
        for m in (*h.listed, h.loose.universe if h.loose is not None else 0):
            everything |= m
    return _can_leave(mask, everything, ordered)


def _can_leave(mask: int, shared: int, lists: Sequence[HintList]) -> bool:
    """Tell whether hints of ``lists`` can cut ``shared`` down to ``mask``."""
    if shared == mask:
        return True
    if not lists:
        return False
    h, rest = lists[0], lists[1:]
    if not rest:
        # The largest mask of a closed family that meets `shared` in nothing but `mask`.
        widest = h.loose.universe & ~shared | mask if h.loose is not None else 0
        return (h.loose is not None and h.loose.admits(widest)) or any(
            m & shared == mask for m in h.listed
        )
    return any(_can_leave(mask, shared & m, rest) for m in _around(mask, h))


def _around(mask: int, h: HintList) -> Iterator[int]:
    """Yield the smallest hints of a list that contain ``mask``."""
    yield from (m for m in h.listed if not mask & ~m)
    loose = h.loose
    if loose is None or mask & ~loose.universe:
        return
    around = Loose(loose.universe, loose.sums, loose.must | mask, loose.least)
    found: list[int] = []
    for size in range(mask.bit_count(), loose.universe.bit_count() + 1):
        for m in ascending(around, size):
            if not any(not smaller & ~m for smaller in found):
                found.append(m)
                yield m
