"""When pods were evicted, for as long as it matters: the limit an hour outlives the agent.

One JSON document in the state folder, times in seconds since the epoch::

    {"version":1,"evicted_at_s":[1796040000.0]}
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agent.errors import StateFileError
from agent.node.durable import Disk, replace_file

EVICTIONS_FILE = "evictions.json"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    version: Literal[1]
    evicted_at_s: list[float]


class EvictionTimesFile:
    """An `agent.report.evictions.EvictionTimes` in a state folder that is there."""

    def __init__(self, folder: Path, *, disk: Disk | None = None) -> None:
        self._path = folder / EVICTIONS_FILE
        self._disk = disk or Disk()

    def load(self) -> tuple[float, ...]:
        """Return the times, none where there is no file; raises `StateFileError`."""
        try:
            return tuple(_File.model_validate_json(self._path.read_bytes()).evicted_at_s)
        except FileNotFoundError:
            return ()
        except (OSError, ValidationError) as error:
            first = str(error).splitlines()[0]
            raise StateFileError(
                f"{self._path} cannot be used ({first}): nobody knows how many pods were evicted"
                " lately, so no other one is within the next hour"
            ) from error

    def save(self, times_s: Iterable[float]) -> None:
        """Remember these times and no others; raises `StateFileError`."""
        text = json.dumps({"version": 1, "evicted_at_s": list(times_s)})
        try:
            replace_file(self._path, f"{text}\n".encode(), self._disk)
        except OSError as error:
            raise StateFileError(
                f"cannot save {self._path}: {error.strerror}; no pod is evicted until it can"
            ) from error
