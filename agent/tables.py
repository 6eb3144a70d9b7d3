"""Tables for people: aligned, coloured only on a terminal.

They are made from the JSON documents of `agent.report`, so that a remote status and a local plan
look the same.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.core.quantity import format_bytes
from agent.core.topology import NodeTopology

Json = dict[str, Any]

_STYLES = {"exclusive": "bold green", "pod-shared": "cyan", "node-shared": "", "rejected": "red"}
_WIDTH_OF_A_FILE = 100_000
"""No line is ever wrapped or cut where a program reads it; tables take what they need."""


def console() -> Console:
    """Return standard output; a file or pipe gets no colours and no narrow columns."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=_WIDTH_OF_A_FILE, color_system=None)


def print_pods(out: Console, document: Json) -> None:
    """Print who has which CPUs; ``document`` is that of ``numalet plan -o json``."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("POD", "CONTAINER", "VERDICT", "CPUS", "MEMS", "CPU.MAX"):
        table.add_column(title, no_wrap=title != "POD")
    for pod in document["pods"]:
        _add_pod(table, pod)
    out.print(table)
    out.print(
        Text(
            f"default CPU set: {document['defaultCpuSet'] or 'empty'}   "
            f"reserved CPUs: {document['reservedCpuSet'] or 'none'}"
        )
    )
    for pod in document["pods"]:
        if not pod["admitted"]:
            name = f"{pod['namespace']}/{pod['name']}"
            out.print(Text(f"{name} rejected: {pod['reason']}: {pod['message']}", style="red"))


def _add_pod(table: Table, pod: Json) -> None:
    verdict = "admitted" if pod["admitted"] else "rejected"
    table.add_row(
        Text(f"{pod['namespace']}/{pod['name']}", style="bold"),
        Text(pod["qosClass"], style="dim"),
        Text(verdict, style=_STYLES.get(verdict, "")),
        pod["cpuPool"] or "-",
        pod["numaNodes"] or "-",
        pod["cpuMax"],
    )
    for container in pod["containers"]:
        style = _STYLES[container["verdict"]]
        table.add_row(
            "",
            f"{container['name']} ({container['kind']})",
            Text(container["verdict"], style=style),
            Text(container["cpus"], style=style),
            container["mems"] or "-",
            container["cpuMax"],
        )


def print_status(out: Console, document: Json) -> None:
    """Print the status of a running agent."""
    state = "ready" if document["ready"] else "not ready"
    observing = ", observing only" if document["observe"] else ""
    out.print(Text(f"numalet {document['version']}, {document['mode']}, {state}{observing}"))
    health = "" if document["source"]["healthy"] else "unhealthy: "
    out.print(Text(f"source of pods: {health}{document['source']['detail']}"))
    out.print(Text(f"cgroup files: {document['cgroupRoot']}"))
    for where, reason in document["rejectedInputs"].items():
        out.print(Text(f"input rejected: {where}: {reason}", style="yellow"))
    for problem in document["problems"]:
        out.print(Text(f"problem: {problem}", style="red"))
    for cause, count in document["drift"].items():
        out.print(Text(f"drift ({cause}): {count}"))
    print_pods(out, document)


def print_state(out: Console, document: Json) -> None:
    """Print a checkpoint: who holds what."""
    written = datetime.fromtimestamp(document["writtenAt"], UTC)
    out.print(Text(f"generation {document['generation']}, written {written:%Y-%m-%d %H:%M:%S} UTC"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("POD", "CONTAINER", "CPUS", "MEMORY"):
        table.add_column(title, no_wrap=True)
    for pod in document["pods"]:
        name = f"{pod['namespace']}/{pod['name']}" if pod["name"] else pod["uid"]
        table.add_row(Text(name, style="bold"), "", pod["cpuPool"] or "-", "")
        for c in pod["containers"]:
            amounts = (f"{format_bytes(b)} on {nodes}" for nodes, b in c["memory"].items())
            memory = ", ".join(amounts) or "-"
            table.add_row("", Text(c["name"]), c["cpus"] or "-", memory)
    out.print(table)
    out.print(Text(f"default CPU set: {document['defaultCpuSet'] or 'empty'}"))
    for uid, rejection in document["rejected"].items():
        out.print(Text(f"{uid} rejected: {rejection['reason']}: {rejection['message']}"))


def print_explanation(out: Console, pod: Json) -> None:
    """Print the verdict and its reason for every container of one pod."""
    out.print(Text(f"{pod['namespace']}/{pod['name']} ({pod['qosClass']}, uid {pod['uid']})"))
    if pod["admitted"]:
        pool = f"CPUs {pod['cpuPool']} on NUMA node {pod['numaNodes']}"
        out.print(Text(f"admitted, holds {pool if pod['cpuPool'] else 'no CPUs of its own'}"))
    else:
        out.print(Text(f"rejected: {pod['reason']}: {pod['message']}", style="red"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("CONTAINER", "VERDICT", "CPUS", "MEMS", "CPU.MAX", "WHY"):
        table.add_column(title, no_wrap=title != "WHY")
    for c in pod["containers"]:
        verdict = Text(c["verdict"], style=_STYLES[c["verdict"]])
        values = (c["cpus"], c["mems"] or "-", c["cpuMax"])
        table.add_row(c["name"], verdict, *values, Text(c["reason"]))
    out.print(table)


def print_config(out: Console, values: Iterable[tuple[str, str, str]]) -> None:
    """Print each key of the configuration, its value, and where that came from."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("KEY", "VALUE", "FROM"):
        table.add_column(title, overflow="fold")
    for key, value, origin in values:
        table.add_row(key, Text(value), Text(origin, style="dim"))
    out.print(table)


def print_topology(out: Console, topology: NodeTopology) -> None:
    """Print the machine as a map: sockets, NUMA nodes, caches, cores, memory."""
    sockets = topology.cpu_bits_by_socket
    out.print(
        Text(
            f"{len(topology.cpus)} CPUs {topology.cpus}, {len(topology.cores)} cores, "
            f"{len(sockets)} sockets, {len(topology.nodes)} NUMA nodes"
        )
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("NODE", "CPUS", "SOCKET", "CACHES", "MEMORY", "HUGEPAGES", "DISTANCES"):
        table.add_column(title, no_wrap=True)
    for node in topology.nodes:
        cpus = topology.cpus_of(node.id)
        bits = cpus.bits
        table.add_row(
            str(node.id),
            str(cpus) or "-",
            ",".join(str(s) for s, of_socket in sockets.items() if of_socket & bits) or "-",
            str(sum(1 for cache in topology.cpu_bits_by_uncore.values() if cache & bits)),
            format_bytes(node.memory_bytes),
            " ".join(f"{n}x{kib}Ki" for kib, n in node.hugepages.items() if n) or "-",
            " ".join(map(str, node.distances)) or "-",
        )
    out.print(table)
