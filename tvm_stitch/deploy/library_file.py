# SPDX-License-Identifier: Apache-2.0
"""Checks of a compiled model's files, so that other files are rejected before anything is loaded."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

KINDS = (None, "llvm", "c", "cuda", "metal", "webgpu", "hexagon", "rocm", "opencl", "vulkan")
"""Kinds of targets that a manifest may name. None means that it names no kind."""
_DTYPE = re.compile(r"bool|u?int(4|8|16|32|64)|float(16|32|64)|bfloat16|float[48]_e\w+")


def is_library(path: Path) -> bool:
    """Return whether a file begins like a shared library (ELF)."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def is_whole(path: Path) -> bool:
    """Return whether a shared library is as long as its header says. Loading a shorter one ends the process."""
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64:
        return False
    if header[4:6] != b"\x02\x01":  # 64 bits, little endian: the loader itself rejects others
        return True
    (sections_at,) = struct.unpack_from("<Q", header, 40)
    entry, count = struct.unpack_from("<HH", header, 58)
    return path.stat().st_size >= int(sections_at) + int(entry) * int(count)


def is_manifest(data: Any) -> bool:
    """Return whether JSON data has the fields of a manifest that are read, with the right types."""
    if not isinstance(data, dict):
        return False
    specs = [data.get("inputs", []), data.get("outputs", [])]
    target, library, flags = data.get("target", {}), data.get("library", ""), data.get("cpu_flags", [])
    call = data.get("call", {})
    return (
        all(isinstance(each, list) and all(map(_is_spec, each)) for each in specs)
        and all(
            _DTYPE.fullmatch(spec["dtype"]) for spec in specs[0]
        )  # for random inputs. Outputs may be lists
        and isinstance(target, dict)
        and target.get("kind") in KINDS
        and isinstance(library, str)
        and isinstance(flags, list)
        and all(isinstance(flag, str) for flag in flags)
        and isinstance(call, dict)
        and all(isinstance(name, str) for key in ("state", "changed") for name in call.get(key, []))
        and all(isinstance(call.get(key), (str, type(None))) for key in ("takes", "returns"))
    )


def _is_spec(data: Any) -> bool:
    if not isinstance(data, dict) or not all(isinstance(data.get(key), str) for key in ("name", "dtype")):
        return False
    shape = data.get("shape")
    return isinstance(shape, list) and all(map(_is_dim, shape))


def _is_dim(data: Any) -> bool:
    return isinstance(data, str) or (type(data) is int and data >= 0)
