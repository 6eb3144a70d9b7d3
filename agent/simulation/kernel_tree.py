"""One cgroup of the simulated kernel, and the rules between it and its neighbours.

Effective sets follow ``compute_effective_cpumask`` (kernel/cgroup/cpuset.c), controllers and
processes follow ``cgroup_subtree_control_write``, ``cgroup_vet_subtree_control_enable`` and
``cgroup_migrate_vet_dst`` (kernel/cgroup/cgroup.c); seen in cgroup2-facts sections 1, 4 and 6.
Refusals are raised as `OSError`.
"""

import errno
from collections.abc import Iterator

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet, NodeSet
from agent.simulation.kernel_values import DEFAULTS, Possible, accepted, refusal

_THREADED = frozenset({"cpuset", "cpu"})
"""Controllers that may serve single threads; the others are domain controllers."""


class Group:
    """A cgroup: its own settings, what is effective, its processes and the cgroups below.

    ``settings`` has a key for each file of an enabled controller, so a missing key is ENOENT.
    """

    def __init__(self, path: CgroupPath, inode: int, parent: "Group | None") -> None:
        self.path = path
        self.inode = inode
        self.parent = parent
        self.children: dict[str, Group] = {}
        self.tasks: set[int] = set()
        self.subtree_control: set[str] = set()
        self.settings: dict[str, str] = {}
        self.cpus = CPUSet()
        self.mems = NodeSet()
        for controller in parent.subtree_control if parent else ():
            self.settings |= DEFAULTS[controller]

    def walk(self) -> Iterator["Group"]:
        """Yield this cgroup and all below it, those above first."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def above(self) -> Iterator["Group"]:
        """Yield the cgroups above this one, the nearest first."""
        group = self.parent
        while group is not None:
            yield group
            group = group.parent

    @property
    def populated(self) -> bool:
        """Tell whether a process is here or anywhere below."""
        return bool(self.tasks) or any(child.populated for child in self.children.values())

    @property
    def controllers(self) -> set[str]:
        """Controllers that may be enabled for the children."""
        return set(DEFAULTS) if self.parent is None else self.parent.subtree_control

    @property
    def cpuset(self) -> "Group":
        """The nearest cgroup, this one or above, whose cpuset confines the processes here."""
        if self.parent is None or "cpuset" in self.controllers:
            return self
        return self.parent.cpuset

    @property
    def kind(self) -> str:
        """What ``cgroup.type`` says (section 4, inner processes)."""
        if not self._is_valid_domain():
            return "domain invalid"
        return "domain threaded" if self._is_thread_root() else "domain"

    def files(self) -> dict[str, str]:
        """Return every control file that exists here, with its text."""
        shown = {
            "cgroup.controllers": _in_kernel_order(self.controllers),
            "cgroup.procs": "\n".join(map(str, sorted(self.tasks))),
            "cgroup.subtree_control": _in_kernel_order(self.subtree_control),
        }
        if self.parent is not None:
            shown["cgroup.events"] = f"populated {self.populated:d}\nfrozen 0"
            shown["cgroup.type"] = self.kind
        if self.cpuset is self:
            shown["cpuset.cpus.effective"] = str(self.cpus)
            shown["cpuset.mems.effective"] = str(self.mems)
        return shown | self.settings

    def settle(self) -> None:
        """Recompute the effective sets here and below; the root's are given from outside.

        A set that shares nothing with the parent's effective one falls back to that (section 1).
        """
        for group in self.walk():
            if group.parent is not None:
                cpus = CPUSet.parse(group.settings.get("cpuset.cpus", ""))
                mems = NodeSet.parse(group.settings.get("cpuset.mems", ""))
                group.cpus = cpus & group.parent.cpus or group.parent.cpus
                group.mems = mems & group.parent.mems or group.parent.mems

    def assign(self, file: str, text: str, possible: Possible) -> None:
        """Take a new value for a file of ``settings``.

        A cpuset list cannot be emptied while there are processes here or below (section 1).
        """
        current = self.settings[file]
        value = accepted(file, text, current, possible)
        if current and not value and self.populated:
            raise refusal(errno.ENOSPC)
        self.settings[file] = value

    def set_subtree_control(self, text: str) -> None:
        """Enable and disable controllers for the children (section 4)."""
        enable, disable = _signed(text)
        enable -= self.subtree_control
        disable &= self.subtree_control
        if not enable <= self.controllers:
            raise refusal(errno.ENOENT)
        if any(disable & child.subtree_control for child in self.children.values()):
            raise refusal(errno.EBUSY)
        self._vet_enable(enable)
        self.subtree_control = (self.subtree_control | enable) - disable
        for child in self.children.values():
            for controller in enable:
                child.settings |= DEFAULTS[controller]
            for file in [file for controller in disable for file in DEFAULTS[controller]]:
                del child.settings[file]

    def vet_process(self) -> None:
        """Refuse a process that may not be moved here (section 4, inner processes)."""
        if not self._is_valid_domain():
            raise refusal(errno.EOPNOTSUPP)
        if self.subtree_control and not self._can_be_thread_root():
            raise refusal(errno.EBUSY)

    def vet_child(self, name: str) -> None:
        """Refuse a name that mkdir(2) refuses here."""
        if name in self.children or name in self.files() or name in (".", ".."):
            raise refusal(errno.EEXIST)
        if not name or "\n" in name:
            raise refusal(errno.EINVAL)

    def _vet_enable(self, enable: set[str]) -> None:
        if not enable:
            return
        if not self._is_valid_domain():
            raise refusal(errno.EOPNOTSUPP)
        if self.parent is None:
            return
        if enable <= _THREADED:
            # The trap of section 4: this succeeds beside a process, and spoils the children.
            if self._can_be_thread_root():
                return
        elif self._is_thread_root():
            raise refusal(errno.EOPNOTSUPP)
        if self.tasks:
            raise refusal(errno.EBUSY)

    def _is_thread_root(self) -> bool:
        return bool(self.parent and self.tasks and self.subtree_control & _THREADED)

    def _can_be_thread_root(self) -> bool:
        return self.parent is None or (
            self.subtree_control <= _THREADED
            and not any(child.populated for child in self.children.values())
        )

    def _is_valid_domain(self) -> bool:
        return not any(group._is_thread_root() for group in self.above())  # noqa: SLF001 - own class


def _in_kernel_order(controllers: set[str]) -> str:
    return " ".join(name for name in DEFAULTS if name in controllers)


def _signed(text: str) -> tuple[set[str], set[str]]:
    """Return the controllers with a plus and those with a minus; the last sign of each counts."""
    signs: dict[str, str] = {}
    for word in text.strip().split(" "):
        if word:
            if word[0] not in "+-" or word[1:] not in DEFAULTS:
                raise refusal(errno.EINVAL)
            signs[word[1:]] = word[0]
    return {c for c, s in signs.items() if s == "+"}, {c for c, s in signs.items() if s == "-"}
