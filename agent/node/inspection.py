"""Looks at a node and changes nothing: collects what `agent.core.checkup` judges."""

import errno
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet
from agent.core.node_facts import (
    CgroupFacts,
    KubeletFacts,
    NodeFacts,
    Obstacle,
    Partition,
    PodsCgroup,
    RunningProcess,
    SocketFacts,
    StateFolderFacts,
    UnitSetting,
)
from agent.core.topology import NodeTopology
from agent.errors import EnvironmentProblem, TopologyError
from agent.node import kubelet_state
from agent.node.cgroupfs import CGROUPS, CgroupFs
from agent.node.mounts import mount_around, parse_mountinfo
from agent.node.numalib import cross_check
from agent.node.state_folder import LOCK_FILE
from agent.node.sysfs import survey

HOST_SERVICES = ("system.slice", "user.slice", "machine.slice", "init.scope")
UNIT_FOLDERS = (
    "etc/systemd/system",
    "etc/systemd/system.control",
    "run/systemd/system",
    "run/systemd/system.control",
    "run/systemd/transient",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
)  # fmt: skip
"""Where systemd 252 reads and writes units (systemd.unit(5), "Unit File Load Path")."""

_MOUNTINFO = "proc/self/mountinfo"
_CPU = "sys/devices/system/cpu"
_INOTIFY = ("max_user_instances", "max_user_watches", "max_queued_events")
_UNIT_SUFFIXES = (".slice", ".scope", ".service", ".conf")
_SETTING = re.compile(r"^[ \t]*(AllowedCPUs|AllowedMemoryNodes)[ \t]*=[ \t]*(\S.*)$", re.MULTILINE)
_BANNED = re.compile(r"""^[ \t]*IRQBALANCE_BANNED_CPULIST=["']?(\d[\d,-]*)""", re.MULTILINE)
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S+)", re.MULTILINE)
_T = TypeVar("_T")
_CONNECT_S = 1.0
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV})


def inspect(
    root: Path,
    *,
    state_dir: Path,
    pods: Iterable[CgroupPath],
    processes: tuple[RunningProcess, ...],
    pod_resources: Path | None = None,
) -> NodeFacts:
    """Return what there is to see of the node whose files are below ``root``.

    ``state_dir`` is a path of this process, wherever the node's are.  ``pods`` are the cgroups in
    which pods live, as far as they exist; ``pod_resources`` is a socket of the node's kubelet, if that is
    asked.  What cannot be read is named in the facts.
    """
    facts = _Inspector(root, processes).facts(state_dir, pods)
    return replace(facts, pod_resources=_socket(root, pod_resources) if pod_resources else None)


class _Inspector:
    def __init__(self, root: Path, processes: tuple[RunningProcess, ...]) -> None:
        self.root = root
        self.processes = processes
        self.unread: list[str] = []

    def facts(self, state_dir: Path, pods: Iterable[CgroupPath]) -> NodeFacts:
        topology, notes = self._topology()
        inotify = {name: self._number(f"proc/sys/fs/inotify/{name}") for name in _INOTIFY}
        swaps = self._text("proc/swaps").splitlines()[1:]
        return NodeFacts(
            release=self._text("proc/sys/kernel/osrelease"),
            topology=topology,
            notes=notes,
            cgroups=self._cgroups(pods),
            processes=self.processes,
            kubelet=self._kubelet(),
            unit_settings=tuple(self._unit_settings()),
            state_folder=self._state_folder(state_dir),
            present=self._cpus(f"{_CPU}/present"),
            online=self._cpus(f"{_CPU}/online"),
            isolated=self._cpus(f"{_CPU}/isolated"),
            nohz_full=self._cpus(f"{_CPU}/nohz_full"),
            smt_control=self._text(f"{_CPU}/smt/control"),
            workqueue_cpus=self._mask("sys/devices/virtual/workqueue/cpumask"),
            default_irq_cpus=self._mask("proc/irq/default_smp_affinity"),
            interrupts=dict(self._interrupts()),
            irqbalance_banned=self._irqbalance_banned(),
            numa_balancing=self._number("proc/sys/kernel/numa_balancing") or 0,
            swaps=tuple(line.split()[0] for line in swaps if line),
            inotify={name: limit for name, limit in inotify.items() if limit is not None},
            unread=tuple(self.unread),
        )

    def _topology(self) -> tuple[NodeTopology | str, tuple[str, ...]]:
        try:
            surveyed = survey(self.root / "sys", meminfo=self.root / "proc/meminfo")
        except (TopologyError, EnvironmentProblem) as problem:
            return str(problem), ()
        if self.root != Path("/"):
            return surveyed.topology, surveyed.notes
        second = cross_check(surveyed.topology).differences  # libnuma knows this machine only
        return surveyed.topology, (*surveyed.notes, *(f"libnuma differs: {s}" for s in second))

    def _cgroups(self, pods: Iterable[CgroupPath]) -> CgroupFacts:
        place = self.root / CGROUPS
        hierarchy = CgroupFs(place, mountinfo=self.root / _MOUNTINFO)
        is_v2 = (place / "cgroup.controllers").exists()
        there = [path.relative for path in pods if (place / path.relative).is_dir()]
        # Only where no kubelet has made the pods' cgroups will a directory be made at the top.
        top = () if there else ("",)
        files = (*top, "cgroup.subtree_control", *(f"{path}/cpuset.cpus" for path in there))
        return CgroupFacts(
            root=str(place),
            mount=_obstacle(hierarchy.check_mount),
            controllers=_obstacle(hierarchy.check_controllers) if is_v2 else None,
            is_v2=is_v2,
            # Every cgroup but the topmost one has this file (Documentation/admin-guide/cgroup-v2).
            is_host_root=is_v2 and not (place / "cgroup.type").exists(),
            pods=tuple(self._pods_cgroup(path) for path in there) if is_v2 else (),
            unwritable=tuple(f"{place / file}" for file in files if not _may_write(place / file)),
            partitions=tuple(self._partitions(place)) if is_v2 else (),
            host_services=self._host_services(),
        )

    def _pods_cgroup(self, path: str) -> PodsCgroup:
        return PodsCgroup(
            path=path,
            kind=self._text(f"{CGROUPS}/{path}/cgroup.type"),
            controllers=frozenset(self._text(f"{CGROUPS}/{path}/cgroup.controllers").split()),
        )

    def _partitions(self, place: Path) -> Iterator[Partition]:
        for folder, _, files in os.walk(place):
            path = str(Path(folder).relative_to(place))
            if "cpuset.cpus.partition" in files:
                kind = self._text(f"{CGROUPS}/{path}/cpuset.cpus.partition")
                if kind not in ("member", ""):
                    takes = kind in ("root", "isolated")  # an invalid one takes nothing
                    cpus = self._effective(path) if takes else CPUSet()
                    yield Partition(path=path, kind=kind, cpus=cpus)

    def _host_services(self) -> dict[str, CPUSet]:
        """Return where the host's own processes may run: by slice, or else the first process.

        What process 1 may use is inherited by what it starts, unless its own scope is the reason.
        """
        found = _ALLOWED.search(self._text("proc/1/status"))
        online = self._cpus(f"{_CPU}/online")
        first = self._understood("proc/1/status", found[1], CPUSet.parse) if found else None
        slices = {
            name: self._effective(name)
            for name in HOST_SERVICES
            if (self.root / CGROUPS / name).is_dir()
        }
        if not slices:
            return {"process 1": first or online}
        if first is None or first == slices.get("init.scope"):
            return slices
        return {name: cpus & first for name, cpus in slices.items()}

    def _effective(self, path: str) -> CPUSet:
        """Return a cgroup's CPUs; all where it has no cpuset files."""
        file = "cpuset.cpus.effective"
        places = (f"{CGROUPS}/{path}/{file}", f"{CGROUPS}/{file}", f"{_CPU}/online")
        return next((cpus for place in places if (cpus := self._cpus(place))), CPUSet())

    def _kubelet(self) -> KubeletFacts:
        facts = kubelet_state.policies(self.root, self.processes)
        self.unread.extend(facts.unread)
        return facts

    def _unit_settings(self) -> Iterator[UnitSetting]:
        for folder in UNIT_FOLDERS:
            for above, _, files in os.walk(self.root / folder):
                for name in sorted(files):
                    path = Path(above, name)
                    if name.endswith(_UNIT_SUFFIXES) and path.is_file():
                        yield from self._settings_in(path.relative_to(self.root))

    def _settings_in(self, path: Path) -> Iterator[UnitSetting]:
        """Yield what a unit's own file, or one in its .d folder, sets."""
        unit = path.parent.name.removesuffix(".d") if path.suffix == ".conf" else path.name
        for key, value in _SETTING.findall(self._text(str(path))):
            yield UnitSetting(unit=unit, key=key, value=value.strip(), file=f"/{path}")

    def _state_folder(self, folder: Path) -> StateFolderFacts:
        place = folder.absolute()
        there = next(path for path in (place, *place.parents) if os.access(path, os.F_OK))
        mounts = parse_mountinfo(self._text(_MOUNTINFO))
        mount = mount_around(there.resolve(), mounts)
        statistics = os.statvfs(there)
        return StateFolderFacts(
            path=str(folder),
            writable=there.is_dir() and _may_write(there),
            filesystem=mount.kind if mount else "",
            free_bytes=statistics.f_bavail * statistics.f_frsize,
            holder=self._lock_holder(folder / LOCK_FILE),
        )

    def _lock_holder(self, file: Path) -> int | None:
        """Return who has a flock on a file, by /proc/locks: trying it out would disturb others."""
        try:
            inode = file.stat().st_ino
        except OSError:
            return None
        lock = rf"FLOCK +ADVISORY +WRITE +(\d+) +[0-9a-f]+:[0-9a-f]+:{inode} "
        found = re.search(lock, self._text("proc/locks"))
        return int(found[1]) if found else None

    def _interrupts(self) -> Iterator[tuple[int, CPUSet]]:
        """Yield the interrupts with a handler, which has a folder there, and where they may go."""
        for folder, handlers, _ in os.walk(self.root / "proc/irq"):
            number = Path(folder).name
            if number.isdecimal() and handlers:
                yield int(number), self._cpus(f"proc/irq/{number}/smp_affinity_list")

    def _irqbalance_banned(self) -> CPUSet | None:
        files = ("etc/default/irqbalance", "etc/sysconfig/irqbalance")
        for file in files:
            if found := _BANNED.findall(self._text(file)):
                return self._understood(file, found[-1], CPUSet.parse)
        return None

    def _cpus(self, path: str) -> CPUSet:
        return self._parsed(path, CPUSet.parse) or CPUSet()

    def _number(self, path: str) -> int | None:
        return self._parsed(path, int)

    def _mask(self, path: str) -> CPUSet | None:
        return self._parsed(path, lambda text: CPUSet.from_bits(int(text.replace(",", ""), 16)))

    def _parsed(self, path: str, parse: Callable[[str], _T]) -> _T | None:
        text = self._text(path)
        # Linux 6.1 prints (null) for nohz_full where there are none.
        return None if text in ("", "(null)") else self._understood(path, text, parse)

    def _understood(self, path: str, text: str, parse: Callable[[str], _T]) -> _T | None:
        try:
            return parse(text)
        except ValueError:
            self.unread.append(f"/{path} ({text[:40]!r} cannot be understood)")
            return None

    def _text(self, path: str) -> str:
        """Return a file's text without white space around it, empty where it is not there."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError as error:
            if error.errno not in _ABSENT:
                self.unread.append(f"/{path} ({error.strerror})")
            return ""


def _socket(root: Path, path: Path) -> SocketFacts | None:
    """Connect to a socket of the node; None where even its folder is not there."""
    place = root / str(path).lstrip("/")
    if not place.parent.is_dir():
        return None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_S)
        try:
            connection.connect(str(place))
        except OSError:
            return SocketFacts(str(path), is_served=False)
    return SocketFacts(str(path), is_served=True)


def _obstacle(check: Callable[[], None]) -> Obstacle | None:
    try:
        check()
    except EnvironmentProblem as problem:
        return Obstacle(what=problem.what, cure=problem.cure)
    except OSError as error:
        return Obstacle(
            what=f"cannot read {error.filename}: {error.strerror}",
            cure="mount proc and sysfs there",
        )
    return None


def _may_write(path: Path) -> bool:
    """Tell whether this process could write; what is not there is nobody's to write."""
    return not os.access(path, os.F_OK) or os.access(path, os.W_OK, effective_ids=True)
