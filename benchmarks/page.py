"""Generated tables, which stand between the marks of a documentation page."""

from __future__ import annotations

from pathlib import Path


def into_page(page: Path, name: str, content: str) -> None:
    """Replaces what stands between `<!-- name:begin -->` and `<!-- name:end -->`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = page.read_text()
    head, tail = text.split(begin)[0], text.split(end)[1]
    page.write_text(f"{head}{begin}\n{content}\n{end}{tail}")


def in_page(page: Path, name: str) -> str:
    """What stands between `<!-- name:begin -->` and `<!-- name:end -->`."""
    _, begun = page.read_text().split(f"<!-- {name}:begin -->\n")
    return begun.split(f"\n<!-- {name}:end -->")[0]
