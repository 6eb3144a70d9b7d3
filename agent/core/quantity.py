"""Kubernetes quantities: ``"1500m"`` to milli-CPU, ``"1Gi"`` to bytes.

The grammar is that of ``k8s.io/apimachinery/pkg/api/resource`` (``ParseQuantity``) and nothing
more: Python's own number parsers accept ``NaN``, ``1_000`` and `` 1``, which the API refuses.
"""

import re
from fractions import Fraction

_GRAMMAR = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))"
    r"(?:(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|)|[eE](?P<exponent>[+-]?\d+))",
    re.ASCII,
)
_SCALE = {"": Fraction(1)}
_SCALE |= {s: Fraction(1024) ** i for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_SCALE |= {s: Fraction(1000) ** i for i, s in enumerate("kMGTPE", 1)}
_SCALE |= {s: Fraction(1, 1000**i) for i, s in enumerate("mun", 1)}
_LARGEST = 2**63 - 1
_LARGEST_EXPONENT = 30
_LONGEST = 100


class QuantityError(ValueError):
    """A text is not a quantity, or not one that a resource can have."""


def parse(text: str) -> Fraction:
    """Return the exact value of a quantity; raises `QuantityError` for anything the API refuses."""
    if len(text) > _LONGEST:
        raise QuantityError(f"a quantity of {len(text)} characters is too long")
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise QuantityError(
            f'{text!r} is not a quantity: write a number such as "2", "1500m", "9Gi"'
        )
    number = Fraction(match["number"])
    if match["exponent"] is None:
        return number * _SCALE[match["suffix"]]
    exponent = int(match["exponent"])
    if abs(exponent) > _LARGEST_EXPONENT:
        raise QuantityError(f"the exponent of {text!r} is out of range")
    return number * Fraction(10) ** exponent


def milli_cpu(text: str) -> int:
    """Return a CPU amount in thousandths of a CPU, rounded up as the API server rounds it."""
    return _resource(text, 1000)


def whole_bytes(text: str) -> int:
    """Return an amount of memory in bytes, rounded up (``resource.Quantity.Value``)."""
    return _resource(text, 1)


def format_bytes(amount: int) -> str:
    """Return the canonical quantity of an amount of bytes: ``9Gi``, ``100Mi``, ``1073741825``."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        scale = int(_SCALE[suffix])
        if amount and amount % scale == 0:
            return f"{amount // scale}{suffix}"
    return str(amount)


def format_milli(amount_milli: int) -> str:
    """Return the canonical quantity of milli-CPUs: ``2``, ``1500m``."""
    return f"{amount_milli}m" if amount_milli % 1000 else str(amount_milli // 1000)


def _resource(text: str, scale: int) -> int:
    value = parse(text) * scale
    if value < 0:
        raise QuantityError(f"{text!r} is negative: a resource cannot be")
    if value > _LARGEST:
        raise QuantityError(f"{text!r} is too large for a resource")
    return -int(-value // 1)
