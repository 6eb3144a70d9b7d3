"""A single host, in a guest: `python -m tests.soak.folder RESULTS SECONDS PODS_A_SECOND`.

250 manifests lie in a folder when the agent starts, and then one after the other is replaced by a
new one.  The agent makes the cgroups; no program runs in them.  What there is to judge is written to
RESULTS/single-host.json.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.vm.agent_process import CALM_CONFIG

from .agents import OnFolder
from .node import PODS, live
from .pods import Pods

FOLDER = Path("/run/pods")


@dataclass(slots=True)
class Folder:
    """The manifests of the pods, the oldest first."""

    path: Path
    pods: Pods = field(default_factory=Pods)
    came: int = 0

    def start(self) -> None:
        """Put the next manifest into the folder, as somebody does who knows how."""
        raw = self.pods.pod(self.came)
        manifest = {key: raw[key] for key in ("kind", "apiVersion", "spec")}
        manifest["metadata"] = {
            key: raw["metadata"][key] for key in ("name", "namespace", "annotations", "labels")
        }
        new = self.path / f".{self.came}"
        new.write_text(json.dumps(manifest))
        new.rename(self._file(self.came))
        self.came += 1

    def replace(self) -> None:
        """Let the oldest pod go, and a new one come."""
        self._file(self.came - PODS).unlink()
        self.start()

    def _file(self, number: int) -> Path:
        return self.path / f"pod-{number}.json"


def main() -> None:
    """Live through it."""
    results, seconds, per_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    FOLDER.mkdir()
    folder = Folder(FOLDER)
    for _ in range(PODS):
        folder.start()
    agent = OnFolder(pods=FOLDER, config=CALM_CONFIG)
    told = live(agent, folder.replace, seconds=seconds, per_s=per_s, results=results)
    (results / "single-host.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
