"""What README.md says that a command prints."""

from pathlib import Path

_README = Path(__file__).resolve().parents[1] / "README.md"


def shown(command: str) -> str:
    """Return the lines below ``command`` in its block of the README."""
    _, found, rest = _README.read_text().partition(f"```console\n{command}\n")
    assert found, f"README.md shows no {command!r}"
    return rest.partition("```")[0]
