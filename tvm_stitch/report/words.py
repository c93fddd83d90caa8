# SPDX-License-Identifier: Apache-2.0
"""Numbers in words, as all views of a report write them."""

from __future__ import annotations

from .data import Size


def count_of(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def bytes_in_words(size: Size) -> str:
    """``"3.2 MB"``, by powers of 1000; a symbolic size as it is written, ``"?"`` for an unknown one."""
    if size is None:
        return "?"
    if not isinstance(size, int):
        return f"{size} B"
    number, unit = float(size), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, bigger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.3g} {unit}"
