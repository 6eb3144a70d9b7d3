"""Options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """How a command prints."""

    TEXT = "text"
    JSON = "json"


ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="KubeletConfiguration, our own section, or both.")
]
SimulateOption = Annotated[
    Path | None, typer.Option("--simulate", help="A machine description instead of this machine.")
]
SysfsOption = Annotated[Path | None, typer.Option("--sysfs", help="A copy of another /sys.")]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="text or json.")]
SocketOption = Annotated[
    Path | None, typer.Option("--socket", help="The agent's socket, if not the configured one.")
]
StateOption = Annotated[Path | None, typer.Option("--state", help="A checkpoint, or its folder.")]
