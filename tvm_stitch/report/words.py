# SPDX-License-Identifier: Apache-2.0
"""Numbers and targets in words, as all views of a report write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .data import Bytes, Spread


def count_of(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def seconds_in_words(seconds: float | None) -> str:
    """Return a time in s, ms or us, as ``"3.2 ms"``, or ``"?"`` for an unknown time."""
    if seconds is None:
        return "?"
    factor, unit = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")
    number = seconds * factor
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


def spread_in_words(spread: Spread) -> str:
    """Return the median, and the range of the middle half of the calls, as ``"3.2 ms (3.1 to 3.4 ms)"``."""
    low, high = seconds_in_words(spread.low), seconds_in_words(spread.high)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return f"{seconds_in_words(spread.median)} ({low} to {high})"


def bytes_in_words(size: Bytes) -> str:
    """Return a size by powers of 1000, as ``"3.2 MB"``. A symbolic size is in bytes, an unknown one is ``"?"``."""
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


def target_words(kind: str, attrs: Mapping[str, Any]) -> str:
    """Return the kind of a target, and the device it names: ``"cuda sm_90"``, ``"llvm skylake-avx512"`` or
    ``"llvm"``.

    Args:
        kind: TVM's name of the kind of target.
        attrs: its attributes.
    """
    named = [str(attrs[key]) for key in ("arch", "mcpu") if key in attrs and str(attrs[key])]
    return " ".join([kind, *named[:1]])
