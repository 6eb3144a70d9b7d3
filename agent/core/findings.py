"""What a check-up says: one finding for each thing that was looked at, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much a finding matters; only a problem keeps numalet from doing its work."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer: ``check`` names what was looked at, ``cure`` is empty where all is well.

    ``subject`` is the program that it is about, where there is one.
    """

    check: str
    level: Level
    sentence: str
    cure: str = ""
    subject: str = ""


def ok(check: str, sentence: str) -> Finding:
    """Return a finding that asks for nothing."""
    return Finding(check=check, level=Level.OK, sentence=sentence)


def warning(check: str, sentence: str, cure: str) -> Finding:
    """Return a finding with which numalet works, but less well than it could."""
    return Finding(check=check, level=Level.WARNING, sentence=sentence, cure=cure)


def problem(check: str, sentence: str, cure: str, *, subject: str = "") -> Finding:
    """Return a finding with which numalet cannot keep its promises."""
    return Finding(check=check, level=Level.PROBLEM, sentence=sentence, cure=cure, subject=subject)


def is_ready(findings: Iterable[Finding]) -> bool:
    """Tell whether nothing that was found is a problem."""
    return all(finding.level is not Level.PROBLEM for finding in findings)
