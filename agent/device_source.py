"""Wires the source of devices to the source of pods, where there is a kubelet to ask."""

import contextlib
from collections.abc import Callable

import structlog

from agent.config import AgentConfig
from agent.core.cgroups import CgroupPath
from agent.core.pods import Pod
from agent.errors import NumaletError
from agent.managed_node import Node
from agent.ports import CgroupsChanged, Event, Post
from agent.sources.kubelet_devices import DeviceSettings, KubeletDevices
from agent.sources.pod_resources import PodResources, is_installed

log = structlog.get_logger(component="device_source")


def find_pod_resources(config: AgentConfig) -> PodResources | None:
    """Return whom to ask for devices; None where that is off, and, which is told, impossible.

    The socket's folder must be there, not yet the socket: the kubelet makes it anew at each start.
    """
    place = config.host_root / str(config.devices.socket).lstrip("/")
    if config.devices.ask == "off":
        return None
    if not place.parent.is_dir():
        log.info("devices_not_asked_for", why=f"there is no folder {place.parent}")
        return None
    if not is_installed():
        log.warning(
            "devices_not_asked_for", why="grpcio is missing: pip install 'numalet[devices]'"
        )
        return None
    return PodResources(place)


def with_devices(  # noqa: PLR0913, PLR0917 - whom to ask, about what, and who hears of it
    kubelet: PodResources,
    node: Node,
    config: AgentConfig,
    post: Post,
    on_made: list[Callable[[CgroupPath], None]],
    stack: contextlib.ExitStack,
) -> Post:
    """Return where a source of pods shall post, so that their devices are posted, too.

    ``on_made`` are those who are told of each new cgroup: who waits for one is added.
    """
    tree = node.tree()

    def has_cgroup(pod: Pod) -> bool:
        try:
            return tree.is_there(pod)
        except NumaletError:
            return False

    devices = KubeletDevices(
        ask=kubelet.devices,
        # Where the agent itself makes the cgroups they say nothing.
        has_cgroup=has_cgroup if node.names is not None else lambda _pod: False,
        post=post,
        clock=node.clock,
        settings=DeviceSettings(limit_s=config.devices.limit_s),
    )
    on_made.append(lambda path: devices.hear(CgroupsChanged(path)))
    devices.start()
    stack.callback(devices.close)

    def post_both(event: Event) -> None:
        post(event)  # first: what is told of a pod's devices must not come before the pod
        devices.hear(event)

    return post_both
