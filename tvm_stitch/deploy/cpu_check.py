# SPDX-License-Identifier: Apache-2.0
"""Link a check of the CPU into a model's library. On an older CPU, everybody who loads the library gets a message.

A property of the library names the level of x86-64 that it needs. The system's loader refuses it on other CPUs. A C++
object checks every feature. It writes to stderr when the library is loaded. Its function ``tvm_stitch_check_cpu``
raises an error.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.private_files import check_own_file
from .cpu_flags import needed_flags
from .native_code import cache_folder, compile_whole, compiler

if TYPE_CHECKING:
    from tvm.target import Target

_LOG = logging.getLogger(__name__)

FUNCTION = "tvm_stitch_check_cpu"
"""The name of the library's function that checks the CPU."""

_SOURCE = Path(__file__).with_suffix(".cc")
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden")

_V2 = ("popcnt", "pni", "ssse3", "sse4_1", "sse4_2")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_LEVELS = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2}
"""The flags of each level of x86-64, the highest first."""


def level(flags: Collection[str]) -> str:
    """Return the highest level of x86-64 all of whose flags are among the needed ones, or ""."""
    return next((name for name, all_of in _LEVELS.items() if set(all_of) <= set(flags)), "")


def check_object(flags: Sequence[str]) -> Path:
    """Return the object with the check of some CPU flags. It is compiled once, and kept in the user's cache.

    Args:
        flags: by their names in ``/proc/cpuinfo``.

    Raises:
        RuntimeError: if there is no C++ compiler, or it rejects the source.
        OSError: if the cache folder cannot be used.
    """
    import tvm_ffi

    listed = "".join(f"{flag} " for flag in flags)
    contents = _SOURCE.read_bytes(), repr(_FLAGS).encode(), listed.encode(), tvm_ffi.__version__.encode()
    digest = hashlib.sha256(b"".join(contents)).hexdigest()[:24]
    output = cache_folder(_SOURCE.stem) / f"{_SOURCE.stem}-{digest}.o"
    if not output.exists():
        includes = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
        command = [
            compiler("the check of the CPU is compiled with a model, by a C++ compiler ($CXX or g++)")[0],
            *(*_FLAGS, "-c", str(_SOURCE)),
            *(f"-I{folder}" for folder in sorted(includes)),
            f'-DTVM_STITCH_CPU_FLAGS="{listed}"',
        ]
        compile_whole(command, output, "the check of the CPU")
    return check_own_file(output)


def link_options(target: Target) -> dict[str, Any]:
    """Return arguments of TVM's ``export_library`` that link the check into a library.

    Args:
        target: the target of the library. For a GPU, the host's CPU counts.
    """
    flags = needed_flags(target)
    if not flags:
        return {}
    mark = [f"-Wl,-z,{name}"] if (name := level(flags)) else []
    try:
        addons = [str(check_object(flags))]
    except RuntimeError as error:  # another compiler may link the library
        _LOG.warning("the library does not check all features of the CPU that loads it: %s", error)
        addons = []
    return {"addons": addons, "options": mark}
