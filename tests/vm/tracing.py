"""What a guest's kernel did, in its own order: a journal of tracefs (Documentation/trace/events.rst).

Nothing here looks now and then.  Every cgroup that is made, every process that joins one, every
program that begins and every write to the files that numalet writes is in it, with its time.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")

# struct kernfs_open_file begins with its node; a node has its parent at 8 and its name at 16.
_NODE = "+0(%di)"
_PLACE = (
    f"above=+0(+16(+8(+8({_NODE})))):string dir=+0(+16(+8({_NODE}))):string"
    f" file=+0(+16({_NODE})):string value=+0(%si):string comm=$comm"
)
_PROBES = tuple(
    f"{kind}:numalet/{name}_{function} {function} {what}"
    for function in ("cpuset_write_resmask", "cpu_max_write", "cgroup_subtree_control_write")
    for kind, name, what in (("p", "begin", _PLACE), ("r", "end", "result=$retval:s64"))
)
"""These functions and fields were tried on Linux 6.1 and 6.12."""

_EVENTS = (
    "numalet", "cgroup/cgroup_mkdir", "cgroup/cgroup_rmdir", "cgroup/cgroup_attach_task",
    "sched/sched_process_fork", "sched/sched_process_exec",
)  # fmt: skip
_LINE = re.compile(r"\s*.+-(\d+)\s+\[(\d+)\] \S+\s+([\d.]+): (\w+): (.*)")
_FIELD = re.compile(r'(\w+)=("[^"]*"|\S*)')


@dataclass(frozen=True, slots=True)
class Traced:
    """Something that the kernel did, in the name of a process."""

    pid: int
    cpu: int
    at_s: float
    event: str
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWrite:
    """A write that the kernel accepted to one of the files that numalet cares for.

    ``cgroup`` is the last two names of its path.
    """

    comm: str
    at_s: float
    cgroup: str
    file: str
    value: str


def begin_journal(*more: tuple[str, str], megabytes: int = 2) -> None:
    """Let this kernel write its journal from now on; ``more`` are other events with a filter each.

    ``megabytes`` are for each CPU.
    """
    subprocess.run(["mount", "-t", "tracefs", "none", TRACING], check=False, capture_output=True)
    (TRACING / "buffer_size_kb").write_text(str(megabytes << 10))
    (TRACING / "trace_clock").write_text("mono")
    # Emulated CPUs may panic over an int3 where Linux patches code that they run: not the scheduler's, to
    # note which pid has which name (of 4 guests 2 did so within 60 times), and no probe twice.
    Path("/proc/sys/debug/kprobes-optimization").write_text("0")
    (TRACING / "options/record-cmd").write_text("0")
    (TRACING / "kprobe_events").write_text("\n".join(_PROBES))
    for event, condition in more:
        (TRACING / "events" / event / "filter").write_text(condition)
    for event in (*_EVENTS, *(event for event, _ in more)):
        (TRACING / "events" / event / "enable").write_text("1")


def copy_journal(target: Path) -> None:
    target.write_text((TRACING / "trace").read_text(errors="replace"))


def read_journal(file: Path) -> list[Traced]:
    """Return everything since the beginning, in order; raises where the kernel dropped something."""
    text = file.read_text()
    kept, written = re.findall(r"entries-in-buffer/entries-written: (\d+)/(\d+)", text)[0]
    assert kept == written, f"{file}: only the last {kept} of {written} entries are there"
    return list(_parse(text))


def _parse(text: str) -> Iterator[Traced]:
    """Yield the entries; a written value may end with a newline, and then goes on in the next line."""
    entries = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for entry in entries.replace('\n"', '"').splitlines():
        match = _LINE.match(entry)
        assert match, entry
        pid, cpu, at_s, event, rest = match.groups()
        fields = {key: value.strip('"') for key, value in _FIELD.findall(rest)}
        yield Traced(int(pid), int(cpu), float(at_s), event, fields)


def file_writes(journal: Iterable[Traced]) -> Iterator[FileWrite]:
    """Yield the writes that the kernel accepted; the time is that of their end."""
    begun: dict[int, Traced] = {}
    for entry in journal:
        if entry.event.startswith("begin_"):
            begun[entry.pid] = entry
        elif entry.event.startswith("end_") and entry.pid in begun:
            fields = begun.pop(entry.pid).fields
            if int(entry.fields["result"]) >= 0:
                yield FileWrite(
                    comm=fields["comm"],
                    at_s=entry.at_s,
                    cgroup=f"{fields['above']}/{fields['dir']}",
                    file=fields["file"],
                    value=fields["value"].strip(),
                )
