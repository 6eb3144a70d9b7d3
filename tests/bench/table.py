"""A table in Markdown, aligned for people who read it as text."""

from collections.abc import Iterable, Iterator, Sequence

Cell = str | float


def markdown(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Yield the lines; numbers stand to the right, those above 10 without decimals."""
    table = list(rows)
    texts = [list(head), *([_text(cell) for cell in row] for row in table)]
    widths = [max(len(text[i]) for text in texts) for i in range(len(head))]
    right = [bool(table) and not isinstance(cell, str) for cell in table[0]] if table else []
    rule = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    for line in (texts[0], rule, *texts[1:]):
        cells = zip(line, widths, right, strict=True)
        yield f"| {' | '.join(t.rjust(w) if r else t.ljust(w) for t, w, r in cells)} |"


def _text(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if cell >= 10 or cell == int(cell) else f"{cell:.2f}"
