"""Debian's containerd with an image made here: the pods of `kubelet_host`, run by the real thing."""

import hashlib
import io
import json
import secrets
import tarfile
from pathlib import Path

from .kubelet_host import NOTES, HostedContainer, HostedPod, KubeletHost, Raw, oci_config, run

IMAGE = "docker.io/library/made-here:1"
ARCHIVE = Path("/run/made-here.tar")
APPLETS = ("sh", "grep", "sleep")


def archive() -> bytes:
    """Return an image, in the form of `docker save`, of one static busybox."""
    layer = _tar(
        {"bin/busybox": Path("/usr/bin/busybox").read_bytes()},
        links={f"bin/{name}": "busybox" for name in APPLETS},
        folders=("bin", "dev", "proc", "sys", "tmp"),
    )
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": ["made-here:1"], "Layers": ["layer.tar"]}]
    documents = {"config.json": config, "manifest.json": manifest}
    files = {name: json.dumps(document).encode() for name, document in documents.items()}
    return _tar({"layer.tar": layer, **files})


def _tar(
    files: dict[str, bytes], *, links: dict[str, str] | None = None, folders: tuple[str, ...] = ()
) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in folders:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for name, content in files.items():
            file = tarfile.TarInfo(name)
            file.size, file.mode = len(content), 0o755
            tar.addfile(file, io.BytesIO(content))
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return buffer.getvalue()


class Containerd:
    """The runtime below a kubelet, without its CRI: what that adds to a bundle is given by us."""

    def begin(self) -> None:
        run("systemctl", "start", "containerd")
        ARCHIVE.write_bytes(archive())
        self._ctr("image", "import", str(ARCHIVE))

    def start(self, host: KubeletHost, raw: Raw) -> HostedPod:
        """Start a pod as `KubeletHost.start` does."""
        pod = host.admit(raw)
        pod.sandbox = secrets.token_hex(32)
        self._run(host, pod, pod.sandbox, None)
        for container in pod.all_containers():
            pod.containers[container["name"]] = self._run(
                host, pod, secrets.token_hex(32), container
            )
        host.report(pod)
        return pod

    def _run(
        self, host: KubeletHost, pod: HostedPod, container_id: str, container: Raw | None
    ) -> HostedContainer:
        command = ["sleep", "1000000"] if container is None else container["command"]
        path = host.driver.oci_path(pod.path, container_id)
        config = oci_config(pod, container_id, container, command, path)
        cpu = config["linux"]["resources"]["cpu"]
        quota = (
            [f"--cpu-quota={cpu['quota']}", f"--cpu-period={cpu['period']}"]
            if "quota" in cpu
            else []
        )
        self._ctr(
            "run", "--detach", "--runc-systemd-cgroup", f"--cgroup={path}", *quota,
            *(f"--annotation={key}={value}" for key, value in config["annotations"].items()),
            f"--mount=type=bind,src={NOTES},dst=/tmp,options=rbind",
            IMAGE, container_id, *command,
        )  # fmt: skip
        leaf = host.driver.leaf(pod.path, container_id)
        pid = int((leaf / "cgroup.procs").read_text().split()[0])
        return HostedContainer(id=container_id, pid=pid, leaf=leaf)

    def _ctr(self, *words: str) -> None:
        run("ctr", "--namespace=k8s.io", *words)
