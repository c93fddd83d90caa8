# SPDX-License-Identifier: Apache-2.0
"""The memory that a file of a stranger may take, so that a small file cannot take all of the machine's."""

from __future__ import annotations

import os
import re
from pathlib import Path

LIMIT = "TVM_STITCH_MODEL_BYTES"
"""Environment variable: the most bytes that a model may take, such as ``8G``. It replaces the limits below."""

SMALL = 1 << 30
"""Bytes that any file may take."""
PER_BYTE = 8
"""Bytes that a model may take for each byte of its file. Models store weights as they are, so most take about one."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class TooLarge(ValueError):
    """A model takes more memory than its file justifies, or than the machine has."""


def check_bytes(needed: int, file_bytes: int, what: str, per_byte: int = PER_BYTE) -> None:
    """Check that a model's data fit this machine, and are in proportion to the model's file.

    Args:
        needed: bytes that the data take in memory.
        file_bytes: bytes of the file.
        what: the subject of the error, such as ``"the archive unpacked"``.
        per_byte: bytes that they may take for each byte of the file.

    Raises:
        TooLarge: with both numbers, and with the variable that raises the limit.
    """
    asked = asked_limit()
    if asked is None and needed > (most := max(SMALL, per_byte * file_bytes)):
        raise TooLarge(
            f"{what} takes {shown(needed)}, more than {shown(most)}, the most for a file of {shown(file_bytes)}; "
            f"if you trust the file, set {LIMIT}={_rounded(needed)}"
        )
    if asked is not None and needed > asked:
        raise TooLarge(f"{what} takes {shown(needed)}, more than {LIMIT}={os.environ[LIMIT]}")
    if needed > (free := available_bytes()):
        raise TooLarge(f"{what} takes {shown(needed)}, and this machine has {shown(free)} left")


def most_bytes(file_bytes: int) -> int:
    """Return the most bytes that a model's data may take here, given the bytes of its file."""
    asked = asked_limit()
    return min(available_bytes(), max(SMALL, PER_BYTE * file_bytes) if asked is None else asked)


def asked_limit() -> int | None:
    """Return the limit of the environment variable in bytes, or None if it is not set.

    Raises:
        TooLarge: if the variable holds no number of bytes.
    """
    text = os.environ.get(LIMIT, "").strip()
    if not text:
        return None
    count = parsed_bytes(text)
    if count is None:
        raise TooLarge(f"{LIMIT}={text} is no number of bytes; write for example {LIMIT}=8G")
    return count


def parsed_bytes(text: str) -> int | None:
    """Return the number of bytes that a text such as ``8G`` gives, or None if it gives none."""
    match = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)(i?B)?", text.strip(), re.I)
    return None if match is None else int(match[1]) * _UNITS[match[2].upper()]


def available_bytes() -> int:
    """Return the bytes of memory that this process can still get, from the kernel and from its control group."""
    left = [_meminfo(Path("/proc/meminfo"))]
    group = Path("/sys/fs/cgroup")
    most, used = _number(group / "memory.max"), _number(group / "memory.current")
    if most is not None and used is not None:
        left.append(max(0, most - used))
    known = [each for each in left if each is not None]
    return min(known) if known else 1 << 62


def _meminfo(path: Path) -> int | None:
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", path.read_text(encoding="ascii"), re.M)
    except OSError:
        return None
    return int(match[1]) << 10 if match else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or "max"
        return None


def shown(count: int) -> str:
    """Return a number of bytes as a person reads it."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _rounded(count: int) -> str:
    """Return at least this number of bytes as a value of the environment variable."""
    size, unit = (1 << 30, "G") if count >= 1 << 30 else (1 << 20, "M")
    return f"{-(-count // size)}{unit}"
