"""A daemon on a node of plain files hears of other CPU managers, and says so."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.doctor.made_up import MadeUpNode
from tests.e2e.daemon import COMMAND, Daemon, Home
from tests.report.rig import until
from tests.scratch import scratch_folder
from tests.sources.api_server import Answer, Json, Request, page, reply, stalled, status
from tests.sources.rig import NODE, Rig
from tests.sources.write_server import WriteServer

CONFIGZ = f"/api/v1/nodes/{NODE}/proxy/configz"
STATIC: Json = {"kubeletconfig": {"cpuManagerPolicy": "static", "memoryManagerPolicy": "None"}}


@pytest.fixture
def home() -> Iterator[Home]:
    with scratch_folder() as name:
        yield Home(Path(name).resolve())


@contextmanager
def observing(home: Home, configz: Answer) -> Iterator[Daemon]:
    """Run a daemon that only observes: the files of the node's cgroups are none of a kernel's."""
    node = MadeUpNode(home.folder / "node")
    node.build()
    node.write("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555")
    node.run("koordlet")
    config = home.config.read_text().partition("---")[2]
    home.config.write_text(f"{config}hostRoot: {node.root}\n")

    def answer(request: Request) -> Answer:
        if request.path == CONFIGZ:
            return configz
        return stalled() if request.is_watch else page()

    with closing(Rig(home.folder)) as rig, closing(WriteServer(answer)) as server:
        words = ["run", "--observe", "--pods", "kubernetes", "--node-name", NODE]
        words += ["--kubeconfig", str(rig.kubeconfig(server.url)), "--config", str(home.config)]
        log = home.folder / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [*COMMAND, *words], stderr=stderr, stdout=subprocess.DEVNULL, env=os.environ
            )
        try:
            daemon = Daemon(home, process, log)
            daemon.until_ready()
            yield daemon
            assert daemon.end() == 0
        finally:
            process.kill()
            process.wait()


def test_who_is_there_is_named_at_once_and_the_kubelet_as_soon_as_it_answers(home: Home) -> None:
    with observing(home, reply(200, STATIC)) as daemon:
        until(lambda: daemon.status()["otherManagers"] == ["koordlet", "kubelet"])
        problems = daemon.status()["problems"]
        assert any("(CPU Manager: static, by its configz)" in problem for problem in problems)
        assert daemon.logged("other_cpu_manager")[0]["what"].startswith("koordlet of Koordinator")


def test_where_configz_may_not_be_read_the_files_alone_count(home: Home) -> None:
    with observing(home, status(403, "Forbidden", "nodes is forbidden")) as daemon:
        until(lambda: bool(daemon.logged("configz_not_told")))
        assert daemon.status()["otherManagers"] == ["koordlet"]
        assert daemon.status()["warnings"] == []
