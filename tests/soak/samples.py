"""What a running agent costs at a moment, by the kernel's word and its own metrics."""

import os
import subprocess
import time
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

METRICS = "http://127.0.0.1:9402/metrics"
INTERVAL_S = 10.0
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All at one moment: memory in KiB, CPU time in seconds since the process began."""

    at_s: float
    pods_replaced: int
    rss_kib: int
    anon_kib: int
    cpu_s: float
    threads: int
    fds: int
    series: tuple[str, ...]
    pending: int


def sample(pid: int, *, at_s: float, replaced: int) -> Sample:
    """Take one of a process; its metrics come last, since who serves them has a thread meanwhile."""
    process = Path(f"/proc/{pid}")
    lines = (process / "status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    after_name = (process / "stat").read_text().rpartition(")")[2].split()
    fds = len(list((process / "fd").iterdir()))
    with urllib.request.urlopen(METRICS, timeout=60) as answer:
        metrics = [line for line in answer.read().decode().splitlines() if line[:1] != "#"]
    values = dict(line.rsplit(" ", 1) for line in metrics)
    return Sample(
        at_s=round(at_s, 1),
        pods_replaced=replaced,
        rss_kib=_kib(status["VmRSS"]),
        anon_kib=_kib(status["RssAnon"]),
        cpu_s=(int(after_name[11]) + int(after_name[12])) / _TICKS_A_SECOND,
        threads=int(status["Threads"]),
        fds=fds,
        series=tuple(sorted(values)),
        pending=int(float(values.get("numalet_outbound_pending", 0))),
    )


def _kib(text: str) -> int:
    return int(text.split(maxsplit=1)[0])


@dataclass(slots=True)
class Sampler:
    """Takes a sample of a process whenever one is due."""

    process: "subprocess.Popen[bytes]"
    began_s: float = field(default_factory=time.monotonic)
    taken: list[Sample] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self.began_s

    def look(self, replaced: int) -> None:
        """Take one if it is due; raises where the process has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the agent ended with status {self.process.returncode}")
        if self.now_s >= len(self.taken) * INTERVAL_S:
            self.taken.append(sample(self.process.pid, at_s=self.now_s, replaced=replaced))

    def told(self) -> list[dict[str, Any]]:
        """Return all samples, to be written as JSON."""
        return [asdict(one) for one in self.taken]
