"""Whatever happens to the simulated kernel, what the real one guarantees holds."""

import random
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet, NodeSet
from agent.errors import CgroupError
from agent.simulation.kernel import SimulatedKernel

from .rig import two_nodes

ROOT = CgroupPath()
PATHS = [CgroupPath(p) for p in ("a", "a/b.c", "a/b.c/d-e", "a/f", "a/f/g_h", "i")]
FILES = ("cpuset.cpus", "cpuset.mems", "cpu.max", "cpu.weight", "memory.max")
TEXTS = ("\n", "0", "1", "0-1", "2-5", "4-7", "0-7:1/2", "8", "x", "50000", "max 1000", "4096")
CONTROLLERS = ("cpuset", "cpu", "memory")

paths = st.sampled_from(PATHS)
some_cpus = st.integers(1, 255).map(CPUSet.from_bits)
signs = st.tuples(st.sampled_from("+-"), st.sampled_from(CONTROLLERS)).map("".join)


class Kernel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.kernel = SimulatedKernel(two_nodes(), Path(self.folder.name))
        self.kernel.on_write = lambda _path, _file, _value: self.sets_are_nested()
        self.online = CPUSet(range(8))
        self.with_memory = NodeSet([0, 1])
        self.pids: list[int] = []

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize(made=st.lists(paths, min_size=2, unique=True))
    def begin_with_some_cgroups(self, made: list[CgroupPath]) -> None:
        for path in made:
            self.kernel.make(path)

    @rule(path=paths)
    def make(self, path: CgroupPath) -> None:
        with suppress(CgroupError):
            self.kernel.make(path)

    @rule(path=paths)
    def mkdir(self, path: CgroupPath) -> None:
        with suppress(CgroupError):
            self.kernel.mkdir(path)

    @rule(path=paths)
    def rmdir(self, path: CgroupPath) -> None:
        with suppress(CgroupError):
            self.kernel.remove(path)

    @rule(path=paths, file=st.sampled_from(FILES), text=st.sampled_from(TEXTS))
    def write(self, path: CgroupPath, file: str, text: str) -> None:
        before = self.kernel.read(path, file)
        try:
            self.kernel.write(path, file, text)
        except CgroupError:
            assert self.kernel.read(path, file) == before

    @rule(path=st.sampled_from([ROOT, *PATHS]), words=st.lists(signs, min_size=1, max_size=3))
    def change_controllers(self, path: CgroupPath, words: list[str]) -> None:
        with suppress(CgroupError):
            self.kernel.write(path, "cgroup.subtree_control", " ".join(words))

    @rule(path=paths, file=st.sampled_from(FILES), text=st.sampled_from(TEXTS))
    def edit_by_hand(self, path: CgroupPath, file: str, text: str) -> None:
        target = self.kernel.root / path.relative / file
        if target.exists():
            target.write_text(text)
            self.kernel.absorb()

    @rule(path=paths)
    def start(self, path: CgroupPath) -> None:
        with suppress(CgroupError):
            self.pids.append(self.kernel.add_task(path))

    @rule(path=paths, choice=st.randoms(use_true_random=False))
    def move(self, path: CgroupPath, choice: random.Random) -> None:
        if self.pids:
            with suppress(CgroupError):
                self.kernel.move(choice.choice(self.pids), path)

    @rule()
    def kill(self) -> None:
        if self.pids:
            self.kernel.kill(self.pids.pop(0))

    @rule(cpus=some_cpus)
    def hotplug_cpus(self, cpus: CPUSet) -> None:
        self.online = cpus
        self.kernel.set_online(cpus)

    @rule(nodes=st.integers(1, 3).map(NodeSet.from_bits))
    def hotplug_memory(self, nodes: NodeSet) -> None:
        self.with_memory = nodes
        self.kernel.set_memory_nodes(nodes)

    @invariant()
    def sets_are_nested(self) -> None:
        """Effective: never empty, inside the parent's, and own and parent's wherever they meet."""
        self.check_sets_below(ROOT, self.online, self.with_memory)

    def check_sets_below(self, path: CgroupPath, cpus: CPUSet, mems: NodeSet) -> None:
        text = self.kernel.read(path, "cpuset.cpus.effective")
        if isinstance(text, str):
            own = CPUSet.parse(str(self.kernel.read(path, "cpuset.cpus") or ""))
            now = CPUSet.parse(text)
            assert now <= cpus
            assert now == (own & cpus or cpus)
            own_mems = NodeSet.parse(str(self.kernel.read(path, "cpuset.mems") or ""))
            now_mems = NodeSet.parse(str(self.kernel.read(path, "cpuset.mems.effective")))
            assert now_mems == (own_mems & mems or mems)
            assert now
            assert now_mems
            cpus, mems = now, now_mems
        for pid in str(self.kernel.read(path, "cgroup.procs")).split():
            assert self.kernel.allowed(int(pid)) == cpus
        for child in self.kernel.children(path):
            self.check_sets_below(child, cpus, mems)

    @invariant()
    def mirror_equals_model(self) -> None:
        root = self.kernel.root
        shown = {f.relative_to(root) for f in root.rglob("*") if f.is_dir()}
        assert shown == {Path(path.relative) for path in self.everything() if path != ROOT}
        for path in self.everything():
            for file in (root / path.relative).iterdir():
                if file.is_file():
                    text = file.read_text().removesuffix("\n")
                    assert self.kernel.read(path, file.name) == text, file
            for name in (*FILES, "cgroup.type", "cgroup.events", "cpuset.cpus.effective"):
                exists = isinstance(self.kernel.read(path, name), str)
                assert (root / path.relative / name).exists() == exists

    @invariant()
    def populated_says_whether_processes_are_below(self) -> None:
        for path in self.everything():
            below = any(
                self.kernel.read(other, "cgroup.procs")
                for other in self.everything()
                if other.is_below(path)
            )
            if path != ROOT:
                events = str(self.kernel.read(path, "cgroup.events"))
                assert events.startswith(f"populated {below:d}\n")

    def everything(self) -> list[CgroupPath]:
        found = [ROOT]
        for path in found:
            found += self.kernel.children(path)
        return found


Kernel.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestKernel = Kernel.TestCase
