# SPDX-License-Identifier: Apache-2.0
"""Compile the emulator's runtime and kernels with g++, and keep the results in a cache folder."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import tempfile
from pathlib import Path

from .compiled import cache_folder, check_own_file, compile_whole, compiler

RUNTIME = Path(__file__).parent / "runtime"
RUNTIME_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti")
RUNTIME_NAME = "libemulator-{}.so"  # with the hash of its sources
KERNEL_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-w",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-stack-protector",
    "-ffp-contract=off",
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "--param=tsan-distinguish-volatile=1",
    # The runtime has the hooks, so the sanitizer's own library must not be linked.
    "-nostdlib",
)


@functools.cache
def _runtime_hash() -> str:
    digest = hashlib.sha256(repr((compiler(), RUNTIME_FLAGS, RUNTIME_NAME)).encode())
    for path in sorted(p for p in RUNTIME.rglob("*") if p.is_file()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


@functools.cache
def load_runtime() -> tuple[ctypes.CDLL, Path]:
    """Compile the runtime if needed, load it, and return it with its path."""
    path = cache_folder() / RUNTIME_NAME.format(_runtime_hash())
    if not path.exists():
        # Kernels find the runtime by this name among the loaded libraries, wherever it was loaded from.
        flags = [*RUNTIME_FLAGS, f"-Wl,-soname,{path.name}"]
        compile_whole([*flags, *(str(p) for p in sorted(RUNTIME.glob("*.cc")))], path)
    lib = ctypes.CDLL(str(check_own_file(path)))
    lib.emu_alloc.restype = ctypes.c_uint64
    lib.emu_alloc.argtypes = [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int]
    lib.emu_free.argtypes = [ctypes.c_uint64]
    lib.emu_owns.argtypes = [ctypes.c_uint64]
    lib.emu_mark.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int]
    lib.emu_count_unwritten.restype = ctypes.c_uint64
    lib.emu_count_unwritten.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int64)]
    lib.emu_report_size.restype = ctypes.c_uint32
    return lib, path


@functools.lru_cache(maxsize=256)
def load_kernels(prepared_text: str, opt_level: str = "-O0") -> ctypes.CDLL:
    """Compile C++ from prepare_source in one go, or find it in the cache, and load it.

    Raises:
        RuntimeError: with the compiler's messages if it does not compile.
    """
    runtime, runtime_path = load_runtime()
    key = hashlib.sha256(
        repr((prepared_text, opt_level, KERNEL_FLAGS, _runtime_hash())).encode()
    ).hexdigest()[:32]
    path = cache_folder() / f"kernels-{key}.so"
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", suffix=".cpp", delete=False) as source:
            source.write(prepared_text)
        try:
            flags = [
                opt_level,
                *KERNEL_FLAGS,
                "-I",
                str(RUNTIME / "include"),
                "-x",
                "c++",
                source.name,
                "-x",
                "none",
            ]
            compile_whole([*flags, str(runtime_path), "-lm", "-lgcc", "-lc"], path)
        finally:
            os.unlink(source.name)
    del runtime
    return ctypes.CDLL(str(check_own_file(path)))
