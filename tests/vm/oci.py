"""What a container runtime makes of a pod of the DaemonSet: a bundle for runc.

It begins with the specification that containerd makes by itself, RuntimeDefault seccomp profile
included, and adds what the DaemonSet asks for, as containerd's CRI plugin does.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]

CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")


@dataclass(frozen=True, kw_only=True)
class Cri:
    """The node's side of a pod.

    ``default`` is the specification that every container begins with, ``rootfs`` the image's file
    system, ``image`` its configuration, ``folders`` what stands for ConfigMaps and emptyDirs, by the
    volume's name.
    """

    default: Json
    rootfs: Path
    image: Json
    folders: Mapping[str, Path]
    service_account: Path
    network: Path
    environment: Mapping[str, str]

    def bundle(self, folder: Path, pod: Json, container: Json, *, cgroup: str) -> None:
        """Write the bundle of one container."""
        folder.mkdir(parents=True)
        spec = copy.deepcopy(self.default)
        spec["root"] = {
            "path": str(self.rootfs),
            "readonly": container["securityContext"]["readOnlyRootFilesystem"],
        }
        spec["process"] = {**spec["process"], **self._process(container)}
        # The CRI plugin lays no tmpfs over /run.
        spec["mounts"] = [m for m in spec["mounts"] if m["destination"] != "/run"]
        spec["mounts"] += self._mounts(pod, container)
        network = {"type": "network", "path": str(self.network)}
        others = [n for n in spec["linux"]["namespaces"] if n["type"] not in ("network", "cgroup")]
        spec["linux"]["namespaces"] = [*others, network, {"type": "cgroup"}]
        spec["linux"]["cgroupsPath"] = cgroup
        (folder / "config.json").write_text(json.dumps(spec))

    def _process(self, container: Json) -> Json:
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        environment = dict(e.split("=", 1) for e in self.image["Env"])
        environment.update(self.environment)
        assert {variable["name"] for variable in container.get("env", ())} <= environment.keys()
        words = [*self.image["Entrypoint"], *container["args"]]
        for name, value in environment.items():
            words = [word.replace(f"$({name})", value) for word in words]
        return {
            "args": words,
            "cwd": "/",
            "env": [f"{name}={value}" for name, value in environment.items()],
            "user": {"uid": security["runAsUser"], "gid": security["runAsGroup"]},
            "capabilities": {kind: [] for kind in CAPABILITY_SETS},
            "noNewPrivileges": not security["allowPrivilegeEscalation"],
        }

    def _mounts(self, pod: Json, container: Json) -> list[Json]:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = [self._bind(volumes[mount["name"]], mount) for mount in container["volumeMounts"]]
        token = "/var/run/secrets/kubernetes.io/serviceaccount"
        mounts.append(_bound(self.service_account, token, "ro"))
        # containerd sorts them, so that none hides another.
        return sorted(mounts, key=lambda mount: str(mount["destination"]).count("/"))

    def _bind(self, volume: Json, mount: Json) -> Json:
        read_only = "rro" if mount.get("recursiveReadOnly") else "ro"
        host = volume.get("hostPath")
        source = Path(host["path"]) if host else self.folders[volume["name"]]
        if host:
            check(source, host["type"])
        return _bound(source, mount["mountPath"], read_only if mount.get("readOnly") else "rw")


def check(path: Path, kind: str) -> None:
    """Do with a hostPath what the kubelet does before it starts the container."""
    if kind == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    is_there = {
        "Directory": Path.is_dir,
        "DirectoryOrCreate": Path.is_dir,
        "File": Path.is_file,
    }
    assert is_there[kind](path), f"hostPath type check failed: {path} is not a {kind}"


def _bound(source: Path, destination: str, access: str) -> Json:
    options = ["rbind", "rprivate", access]
    return {
        "type": "bind",
        "source": str(source),
        "destination": destination,
        "options": options,
    }
