"""The kubelet, the runtime and systemd of a recorded day, at work on the simulated kernel."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from agent.core.cgroups import CgroupPath
from agent.core.plan import CPU_MAX_FILE, CPUS_FILE
from agent.node.cgroup_layout import container_id
from agent.ports import GONE
from agent.simulation.kernel_values import DEFAULTS
from tests.reconciler.rig import WatchedKernel

from .recording import Line, Names, annotations

SUBTREE = "cgroup.subtree_control"
LIMITS = (CPU_MAX_FILE, "cpu.weight", "memory.max")
"""What a kubelet with the policy none writes; what the native managers wrote is left out."""

_PROGRAM = 0
"""Stands for processes of which the recording has no pid."""


class RecordedNode:
    """Does what was done; a cgroup's cpuset files come, vanish and come back as they did."""

    def __init__(
        self,
        kernel: WatchedKernel,
        kubepods: CgroupPath,
        names: Names,
        bundles: Path,
    ) -> None:
        self._kernel = kernel
        self._kubepods = kubepods
        self._names = names
        self._bundles = bundles
        self._pids: dict[CgroupPath, dict[int, int]] = {}
        self.said: dict[tuple[CgroupPath, str], str] = {}
        """What the kubelet, the runtime or systemd wrote last."""
        self._shown: dict[str, Mapping[str, str]] = {}
        kernel.make(kubepods)

    @property
    def processes(self) -> list[tuple[CgroupPath, int]]:
        """Every process that runs, with its cgroup."""
        return [(path, pid) for path, pids in self._pids.items() for pid in pids.values()]

    def play(self, line: Line) -> None:
        """Do what one line tells."""
        path = CgroupPath(line.get("path", ""))
        match line["ev"]:
            case "mkdir":
                self._make(path, line["at_once"], line["n_procs"])
            case "values":
                self._give(path, line["changed"])
            case "procs" if path in self._pids:  # some were seen after the cgroup had gone
                self._run(path, [pid for pid, _ in line["procs"]])
            case "cgroup.events" if path in self._pids:
                runs = "populated 1" in (line["now"] or "")
                self._run(path, (list(self._pids[path]) or [_PROGRAM]) if runs else [])
            case "rmdir":
                self._remove(path)
            case "moment":
                self._agree(line["cgroups"])
            case "writes":
                self._undo(line["did"], line["values"])

    def write(self, path: CgroupPath, file: str, value: str) -> None:
        """Write as somebody else than the agent."""
        self.said[path, file] = value
        if self._kernel.read(path, file) != value:
            self._kernel.foreign_write(path, file, value)

    def _make(self, path: CgroupPath, values: Mapping[str, str | None], processes: int) -> None:
        if self._kernel.identity(path.parent) is GONE:
            self._kernel.mkdir(path.parent)
        self._switch(path.parent, on=values[CPUS_FILE] is not None)
        self._kernel.mkdir(path)
        id_ = container_id(path)
        if id_ is not None:
            (self._bundles / id_).mkdir()
            text = json.dumps({"annotations": annotations(self._names, id_)})
            (self._bundles / id_ / "config.json").write_text(text)
            self._pids[path] = {}
            self._run(path, [_PROGRAM] * min(processes, 1))
        self._give(path, values)

    def _give(self, path: CgroupPath, values: Mapping[str, str | None]) -> None:
        if values.get(SUBTREE, "") is None:
            return  # the cgroup had gone before it was read
        if CPUS_FILE in values:
            self._switch(path.parent, on=values[CPUS_FILE] is not None)
        if values.get(SUBTREE):
            self._control(path, str(values[SUBTREE]).split())
        for file in LIMITS:
            if (value := values.get(file)) is not None:
                self.write(path, file, value)

    def _run(self, path: CgroupPath, wanted: list[int]) -> None:
        pids = self._pids[path]
        for recorded in wanted:
            if recorded not in pids:
                pids[recorded] = self._kernel.add_task(path)
        for recorded in pids.keys() - set(wanted):
            self._kernel.kill(pids.pop(recorded))

    def _remove(self, path: CgroupPath) -> None:
        for child in self._kernel.children(path):
            self._remove(child)
        if path in self._pids:
            self._run(path, [])
            del self._pids[path]
        self._kernel.vanish(path)

    def _agree(self, cgroups: Mapping[str, Mapping[str, str]]) -> None:
        """Do what no line but the moment tells of: cpuset files that came or went, and quotas."""
        for name, values in cgroups.items():
            path = CgroupPath(name)
            if self._kernel.identity(path) is GONE:
                continue
            self._control(path, values[SUBTREE].split())
            quota = values.get(CPU_MAX_FILE, "max")
            # Lifted by a native manager or by the recorder's own agent, it is not the kubelet's.
            if not quota.startswith("max") and self.said.get((path, CPU_MAX_FILE)) != quota:
                self.write(path, CPU_MAX_FILE, quota)

    def _undo(self, did: str, cgroups: Mapping[str, Mapping[str, str]]) -> None:
        """Write what others wrote over the values of the recorder's own agent.

        At a daemon-reload systemd writes every quota that it knows (cgroup2-facts section 7); the
        recording shows only those that the recorder's agent had lifted.
        """
        reloads = "daemon-reload" in did and self._kubepods.name.endswith(".slice")
        paths = {path.name: path for path in self._below(self._kubepods)}
        for name, values in cgroups.items():
            before, self._shown[name] = self._shown.get(name, values), values
            for file, value in values.items():
                is_known = reloads and file == CPU_MAX_FILE and not value.startswith("max")
                if not did.startswith("agent") and (is_known or value != before[file]):
                    self.write(paths[name], file, value)

    def _switch(self, path: CgroupPath, *, on: bool) -> None:
        """Give the cpuset files to all directly below a cgroup, or take them."""
        has = str(self._kernel.read(path, SUBTREE)).split()
        others = {*has, "cpu", "memory"} - {"cpuset"}
        self._control(path, [*others, "cpuset"] if on else others)

    def _control(self, path: CgroupPath, wanted: Iterable[str]) -> None:
        """Enable exactly these controllers: those above first, and disable those below first."""
        has = set(str(self._kernel.read(path, SUBTREE)).split())
        wanted = set(wanted) & DEFAULTS.keys()
        if wanted == has:
            return
        if path != self._kubepods and wanted - has:
            above = str(self._kernel.read(path.parent, SUBTREE)).split()
            self._control(path.parent, {*above, *wanted})
        for child in self._kernel.children(path) if has - wanted else ():
            below = str(self._kernel.read(child, SUBTREE)).split()
            self._control(child, set(below) - (has - wanted))
        signed = [*(f"+{c}" for c in wanted - has), *(f"-{c}" for c in has - wanted)]
        self._kernel.foreign_write(path, SUBTREE, " ".join(signed))

    def _below(self, path: CgroupPath) -> Iterable[CgroupPath]:
        yield path
        for child in self._kernel.children(path):
            yield from self._below(child)
