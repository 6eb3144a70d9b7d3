"""Tables for people: aligned, coloured only on a terminal.

They are made from the JSON documents of `agent.report`, so that a remote status and a local plan
look the same.  A terminal may be narrower than a table: cells are then wrapped, between the ranges
of a CPU list too, and nothing is ever cut.

rich is imported only where something is printed: the daemon has 3 MiB less without it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent.core.explain import WAITING_FOR_DEVICES
from agent.core.quantity import format_bytes
from agent.core.topology import NodeTopology, NumaNode

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

Json = dict[str, Any]

_STYLES = {
    "exclusive": "bold green",
    "pod-shared": "cyan",
    "node-shared": "",
    "unsupported-runtime": "yellow",
    "rejected": "red",
    "waiting": "yellow",
}
_WIDTH_OF_A_FILE = 100_000
"""No line is ever wrapped where a program reads it; tables take what they need."""
_LONGEST_RANGE = 16
"""Such a piece is never broken: a range of CPUs is shorter, but a name may have 253 characters."""


def console() -> "Console":
    """Return standard output; a file or pipe gets no colours and no narrow columns."""
    from rich.console import Console  # noqa: PLC0415 - see the module

    plain = Console()
    return plain if plain.is_terminal else Console(width=_WIDTH_OF_A_FILE, color_system=None)


@dataclass(frozen=True)
class _Cell:
    """A text that may be broken after a comma or a space."""

    text: str
    style: str = ""

    @property
    def pieces(self) -> list[str]:
        return re.findall(r"[^, ]+[, ]*", self.text)

    @property
    def longest_piece(self) -> int:
        return max((len(piece.rstrip()) for piece in self.pieces), default=0)

    def __rich_measure__(self, _console: "Console", _options: "ConsoleOptions") -> "Measurement":
        from rich.measure import Measurement  # noqa: PLC0415 - see the module

        return Measurement(self.longest_piece, len(self.text))

    def __rich_console__(self, _console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text  # noqa: PLC0415 - see the module

        lines = [""]
        for piece in self.pieces:
            if lines[-1] and len(lines[-1] + piece.rstrip()) > options.max_width:
                lines.append("")
            lines[-1] += piece
        yield Text("\n".join(line.rstrip() for line in lines), style=self.style)


def _print_table(
    out: "Console",
    titles: Sequence[str],
    rows: Iterable[Sequence[_Cell]],
    unbroken: int = _LONGEST_RANGE,
) -> None:
    """Print columns; a piece of up to ``unbroken`` characters is in one line, however narrow."""
    from rich.table import Table  # noqa: PLC0415 - see the module

    rows = list(rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in zip(map(_Cell, titles), *rows, strict=True):
        longest = max(cell.longest_piece for cell in column)
        table.add_column(column[0].text, overflow="fold", min_width=min(longest, unbroken))
    for row in rows:
        table.add_row(*row)
    out.print(table, crop=False)


def _print_line(out: "Console", text: str, style: str = "") -> None:
    """Print a line that a narrow terminal may wrap, without a line end of ours in a CPU list."""
    from rich.text import Text  # noqa: PLC0415 - see the module

    out.print(Text(text, style=style), soft_wrap=True)


def print_pods(out: "Console", document: Json) -> None:
    """Print who has which CPUs; ``document`` is that of ``numalet plan -o json``."""
    titles = ("POD", "CONTAINER", "VERDICT", "CPUS", "MEMS", "CPU.MAX")
    _print_table(out, titles, (row for pod in document["pods"] for row in _pod_rows(pod)))
    _print_line(
        out,
        f"default CPU set: {document['defaultCpuSet'] or 'empty'}   "
        f"reserved CPUs: {document['reservedCpuSet'] or 'none'}",
    )
    for pod in document["pods"]:
        if not pod["admitted"]:
            name = f"{pod['namespace']}/{pod['name']}"
            text = f"{name} {_decision(pod)}: {pod['reason']}: {pod['message']}"
            _print_line(out, text, _STYLES[_decision(pod)])


def _decision(pod: Json) -> str:
    if pod["reason"] == WAITING_FOR_DEVICES:
        return "waiting"
    return "admitted" if pod["admitted"] else "rejected"


def _pod_rows(pod: Json) -> Iterator[Sequence[_Cell]]:
    verdict = _decision(pod)
    yield (
        _Cell(f"{pod['namespace']}/{pod['name']}", "bold"),
        _Cell(pod["qosClass"], "dim"),
        _Cell(verdict, _STYLES.get(verdict, "")),
        _Cell(pod["cpuPool"] or "-"),
        _Cell(pod["numaNodes"] or "-"),
        _Cell(pod["cpuMax"]),
    )
    for container in pod["containers"]:
        style = _STYLES[container["verdict"]]
        yield (
            _Cell(""),
            _Cell(f"{container['name']} ({container['kind']})"),
            _Cell(container["verdict"], style),
            _Cell(container["cpus"], style),
            _Cell(container["mems"] or "-"),
            _Cell(container["cpuMax"]),
        )


def print_status(out: "Console", document: Json) -> None:
    """Print the status of a running agent."""
    state = "ready" if document["ready"] else "not ready"
    observing = ", observing only" if document["observe"] else ""
    _print_line(out, f"numalet {document['version']}, {document['mode']}, {state}{observing}")
    health = "" if document["source"]["healthy"] else "unhealthy: "
    _print_line(out, f"source of pods: {health}{document['source']['detail']}")
    _print_line(out, f"cgroup files: {document['cgroupRoot']}")
    for where, reason in document["rejectedInputs"].items():
        _print_line(out, f"input rejected: {where}: {reason}", "yellow")
    for problem in document["problems"]:
        _print_line(out, f"problem: {problem}", "red")
    for warning in document["warnings"]:
        _print_line(out, f"warning: {warning}", "yellow")
    for kind, trouble in document.get("outbound", {}).get("troubles", {}).items():
        _print_line(out, f"not said ({kind}): {trouble}", "yellow")
    for cause, count in document["drift"].items():
        _print_line(out, f"drift ({cause}): {count}")
    print_pods(out, document)


def print_state(out: "Console", document: Json) -> None:
    """Print a checkpoint: who holds what."""
    written = datetime.fromtimestamp(document["writtenAt"], UTC)
    _print_line(
        out, f"generation {document['generation']}, written {written:%Y-%m-%d %H:%M:%S} UTC"
    )
    rows = (row for pod in document["pods"] for row in _holder_rows(pod))
    _print_table(out, ("POD", "CONTAINER", "CPUS", "MEMORY"), rows)
    _print_line(out, f"default CPU set: {document['defaultCpuSet'] or 'empty'}")
    for uid, rejection in document["rejected"].items():
        _print_line(out, f"{uid} rejected: {rejection['reason']}: {rejection['message']}")


def _holder_rows(pod: Json) -> Iterator[Sequence[_Cell]]:
    name = f"{pod['namespace']}/{pod['name']}" if pod["name"] else pod["uid"]
    yield _Cell(name, "bold"), _Cell(""), _Cell(pod["cpuPool"] or "-"), _Cell("")
    for c in pod["containers"]:
        amounts = (f"{format_bytes(b)} on {nodes}" for nodes, b in c["memory"].items())
        memory = ", ".join(amounts) or "-"
        yield _Cell(""), _Cell(c["name"]), _Cell(c["cpus"] or "-"), _Cell(memory)


def print_explanation(out: "Console", pod: Json) -> None:
    """Print the verdict and its reason for every container of one pod."""
    _print_line(out, f"{pod['namespace']}/{pod['name']} ({pod['qosClass']}, uid {pod['uid']})")
    if pod["admitted"]:
        pool = f"CPUs {pod['cpuPool']} on NUMA node {pod['numaNodes']}"
        _print_line(out, f"admitted, holds {pool if pod['cpuPool'] else 'no CPUs of its own'}")
    else:
        text = f"{_decision(pod)}: {pod['reason']}: {pod['message']}"
        _print_line(out, text, _STYLES[_decision(pod)])
    rows = (
        (
            _Cell(c["name"]),
            _Cell(c["verdict"], _STYLES[c["verdict"]]),
            *map(_Cell, (c["cpus"], c["mems"] or "-", c["cpuMax"], c["reason"])),
        )
        for c in pod["containers"]
    )
    _print_table(out, ("CONTAINER", "VERDICT", "CPUS", "MEMS", "CPU.MAX", "WHY"), rows)


def print_config(out: "Console", values: Iterable[tuple[str, str, str]]) -> None:
    """Print each key of the configuration, its value, and where that came from."""
    rows = [(_Cell(key), _Cell(value), _Cell(origin, "dim")) for key, value, origin in values]
    longest_key = max(len(key.text) for key, _, _ in rows)
    _print_table(out, ("KEY", "VALUE", "FROM"), rows, unbroken=longest_key)


def print_topology(out: "Console", topology: NodeTopology) -> None:
    """Print the machine as a map: sockets, NUMA nodes, caches, cores, memory."""
    sockets = topology.cpu_bits_by_socket
    _print_line(
        out,
        f"{len(topology.cpus)} CPUs {topology.cpus}, {len(topology.cores)} cores, "
        f"{len(sockets)} sockets, {len(topology.nodes)} NUMA nodes",
    )
    titles = ("NODE", "CPUS", "SOCKET", "CACHES", "MEMORY", "HUGEPAGES", "DISTANCES")
    _print_table(out, titles, (_node_row(topology, node) for node in topology.nodes))


def _node_row(topology: NodeTopology, node: NumaNode) -> Sequence[_Cell]:
    cpus = topology.cpus_of(node.id)
    sockets, caches = topology.cpu_bits_by_socket, topology.cpu_bits_by_uncore
    texts = (
        str(node.id),
        str(cpus) or "-",
        ",".join(str(s) for s, bits in sockets.items() if bits & cpus.bits) or "-",
        str(sum(1 for bits in caches.values() if bits & cpus.bits)),
        format_bytes(node.memory_bytes),
        " ".join(f"{n}x{kib}Ki" for kib, n in node.hugepages.items() if n) or "-",
        " ".join(map(str, node.distances)) or "-",
    )
    return [_Cell(text) for text in texts]
