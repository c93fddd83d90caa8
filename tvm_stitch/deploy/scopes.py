# SPDX-License-Identifier: Apache-2.0
"""Executables without the memory scopes that TVM's virtual machine notes in them.

A virtual machine asks its executable for the memory scope of each constant, and TVM 0.27 thereby adds an empty one.
A library that is written afterwards has these entries, and TVM warns of each whenever the library is loaded.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import tvm

from ..support.quiet import without_native_stderr

_WITH_SCOPES = 0xD225DE2F4214151E
"""The first number of an executable's bytes, in the format that has memory scopes."""
_LOAD = "ffi.Module.load_from_bytes.relax.VMExecutable"


def without_empty_scopes(executable: Any) -> Any:
    """Return an executable of the same model that has no empty memory scopes.

    It is the same executable if there are none, or if TVM's format is not known. The argument stays as it is.

    Args:
        executable: TVM's executable of a Relax module.
    """
    module = executable.mod
    if module.kind != "relax.VMExecutable":
        return executable
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "executable"
        with without_native_stderr():  # TVM warns of every scope
            module.write_to_file(str(path))
        with path.open("rb") as file:
            begin, end, scopes = _section(file)
        if not scopes or any(scopes):
            return executable
        data = path.read_bytes()
    fresh = tvm.get_global_func(_LOAD)(data[:begin] + struct.pack("<Q", 0) + data[end:])
    for inner in module.imports:
        fresh.import_module(inner)
    return tvm.relax.VMExecutable(fresh)


def _section(file: BinaryIO) -> tuple[int, int, list[bytes]]:
    """Return where the section of memory scopes begins and ends, and the scopes.

    Before it are the format, TVM's version, and the functions: a kind, a name, four numbers and names of parameters.
    """
    if _number(file) != _WITH_SCOPES:
        return 0, 0, []
    _text(file)
    for _ in range(_number(file)):
        file.read(4)
        _text(file)
        file.read(4 * 8)
        for _ in range(_number(file)):
            _text(file)
    begin, scopes = file.tell(), []
    for _ in range(_number(file)):
        file.read(8)  # the constant's number
        scopes.append(_text(file))
    return begin, file.tell(), scopes


def _number(file: BinaryIO) -> int:
    (number,) = struct.unpack("<Q", file.read(8))
    return int(number)


def _text(file: BinaryIO) -> bytes:
    return file.read(_number(file))
