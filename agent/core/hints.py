"""Hints of the CPU and memory managers, and their merge by the topology manager.

A `HintList` is the whole list that the kubelet would enumerate for one resource, kept as a rule:
a family of node masks, a few listed masks, and which of them are preferred.  The merge finds what
``HintMerger.Merge`` (pkg/kubelet/cm/topologymanager/policy.go) would find among all combinations of
one hint a list, by the rules that its walk reduces to (kubelet-semantics 6.3), without making the
combinations.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from agent.core.closest import closest
from agent.core.intersections import Intersections
from agent.core.masks import (
    Distances,
    Loose,
    Search,
    node_bits,
    smallest_size,
    total_distance,
)
from agent.core.spread import Spread


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
        return self.spread is not None and self.spread.admits(mask)

    @property
    def spread(self) -> Spread | None:
        """The masks that are preferred for the number of sockets they touch."""
        if not self.preferred_sockets:
            return None
        return Spread(self.preferred_sockets, self.sockets_of_node)

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
        listed = {m for h in lists for m in h.listed if all(g.contains(m) for g in lists)}
        listed = {m for m in listed if all(h.prefers(m) for h in lists)}
        loose = lists[0].loose
        for h in lists[1:]:
            loose = loose & h.loose if loose is not None and h.loose is not None else None
        spreads = (None, *_spreads(lists, 0))
        searches = [] if loose is None else [Search(loose, spread=s) for s in spreads]
        for size in sorted(fixed) or range(1, self.full.bit_count() + 1):
            wanted: Sequence[Spread | None] = _spreads(lists, size) or [None]
            best = self._best([s for s in searches if s.spread in wanted], listed, size)
            if best is not None:
                return best
        return None

    def _best(
        self,
        searches: Sequence[Search],
        listed: set[int],
        size: int,
        accept: Callable[[int], bool] | None = None,
    ) -> int | None:
        """Return the best mask of one size: of the listed ones, or that all searches would find."""
        found = [m for m in listed if m.bit_count() == size]
        if searches and all(s.spread is None or s.can(size) for s in searches):
            if len(searches) > 1:
                accept = functools.partial(_have_spreads, searches)
            first = searches[0].lowest(size, accept)
            if first is not None and self.distances is not None:
                first = closest(searches[0], first, self.distances, accept)
            found += [] if first is None else [first]
        if self.distances is None:
            return min(found, default=None)
        distances = self.distances
        return min(found, key=lambda m: (total_distance(m, distances), m), default=None)

    def _best_other(self, copies: Sequence[HintList]) -> int | None:
        """Return the best mask that is the intersection of one hint of each list."""
        wanted = max(h.smallest() or 0 for i, h in enumerate(copies) if copies.index(h) == i)
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
            if not families or left.bit_count() == size:
                found.add(left)
                continue
            best = self._best_common(left, families, size)
            found |= set() if best is None else {best}
        return self._best([], found, size)

    def _best_common(self, left: int, families: Sequence[Loose], size: int) -> int | None:
        """Return the best mask that one hint of each family leaves of some nodes."""
        if len(families) == 1:
            # Its mask may go on outside, where the others let nothing through.
            return self._best([Search(families[0].inside(left))], set(), size)
        common = Intersections(left, families, size)
        first = common.lowest()
        if first is None or self.distances is None:
            return first
        accept = None if common.are_all else common.admits
        return closest(Search(Loose(left, ())), first, self.distances, accept)

    def _regions(
        self, copies: Sequence[HintList], size: int
    ) -> Iterator[tuple[int, Sequence[Loose]]]:
        """Yield where the intersections with ``size`` nodes are.

        Each list gives a listed mask or one of its family.  Yielded is what the listed masks and
        the families' universes leave, with the families that may cut more out of it.
        """
        regions: dict[int, set[tuple[int, ...]]] = {self.full: {()}}
        for h in copies:
            first = copies.index(h)
            narrowed: dict[int, set[tuple[int, ...]]] = {}
            universe = h.loose.universe if h.loose and h.loose.admits(h.loose.universe) else 0
            for left, ways in regions.items():
                for mask in h.listed:
                    if (left & mask).bit_count() >= size:
                        narrowed.setdefault(left & mask, set()).update(ways)
                if (left & universe).bit_count() >= size:
                    by_family = ((*families, first) for families in ways)
                    narrowed.setdefault(left & universe, set()).update(by_family)
            regions = narrowed
        for left, ways in regions.items():
            for families in ways:
                cutting = (copies[i].loose for i in families)
                yield left, [loose for loose in cutting if loose is not None]


def _have_spreads(searches: Sequence[Search], mask: int) -> bool:
    """Tell whether a mask is spread as all these searches want it."""
    return all(s.spread is None or s.spread.admits(mask) for s in searches)


def _spreads(lists: Sequence[HintList], size: int) -> list[Spread]:
    """Return the spreads that a mask of this size needs to be preferred in every list."""
    wanted: list[Spread] = []
    for h in lists:
        if h.preferred_size != size and h.spread is not None and h.spread not in wanted:
            wanted.append(h.spread)
    return wanted
