# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the NVIDIA driver's libcuda.so.1, for machines without a driver, written without a compiler.

The wheel's libtvm.so is linked to libcuda.so.1 and does not load without it. The stand-in is a minimal ELF shared
object. Each of its functions returns CUDA_ERROR_NO_DEVICE. A real driver always takes precedence (see
``libraries``).
"""

from __future__ import annotations

import hashlib
import os
import platform
import struct
import tempfile
from pathlib import Path

from .errors import ToolchainError

SONAME = "libcuda.so.1"
MARKER = "tvm_relay_toolchain_stub"
"""A function that only the stand-in has, which distinguishes it from a driver."""

FUNCTIONS = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuLaunchKernel",
    "cuMemsetD32_v2",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    MARKER,
)
CUDA_ERROR_NO_DEVICE = 100

_PAGE = 0x1000
_EHDR, _PHDR, _SYM, _DYN = 64, 56, 24, 16  # sizes of ELF64 structures, in bytes
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_R, _W, _X = 4, 2, 1
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14

_temporary: tempfile.TemporaryDirectory[str] | None = None


def image() -> bytes:
    """Return the bytes of the shared object (ELF64, x86-64).

    Page 0 holds headers, symbols and code (readable, executable). Page 1 holds the dynamic section (writable,
    because the loader of older C libraries relocates it in place).
    """
    # The code is "mov eax, CUDA_ERROR_NO_DEVICE" and "ret".
    code = b"\xb8" + struct.pack("<I", CUDA_ERROR_NO_DEVICE) + b"\xc3"
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in (SONAME, *FUNCTIONS))
    symbol_count = 1 + len(FUNCTIONS)
    # One hash bucket: a chain through all symbols is short enough, and needs no hash function.
    hash_words = [1, symbol_count, 1, 0, *range(2, symbol_count), 0]

    symbols_at = _EHDR + 4 * _PHDR
    hash_at = symbols_at + _SYM * symbol_count
    strings_at = hash_at + 4 * len(hash_words)
    code_at = -(-(strings_at + len(strings)) // 16) * 16
    code_end = code_at + len(code)
    assert code_end <= _PAGE

    symbols = bytes(_SYM)
    for name in FUNCTIONS:
        offset = strings.index(b"\0" + name.encode() + b"\0") + 1
        # A global function of default visibility in an arbitrary defined section. All share the same body.
        symbols += struct.pack("<IBBHQQ", offset, 0x12, 0, 1, code_at, len(code))
    dynamic = b"".join(
        struct.pack("<QQ", tag, value)
        for tag, value in (
            (_DT_SONAME, strings.index(SONAME.encode())),
            (_DT_HASH, hash_at),
            (_DT_STRTAB, strings_at),
            (_DT_SYMTAB, symbols_at),
            (_DT_STRSZ, len(strings)),
            (_DT_SYMENT, _SYM),
            (_DT_NULL, 0),
        )
    )
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    # ET_DYN, EM_X86_64, version, entry, program headers, section headers (none), flags, sizes and counts.
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, _EHDR, 0, 0, _EHDR, _PHDR, 4, 64, 0, 0)

    def segment(kind: int, flags: int, offset: int, size: int, align: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, align)

    header += segment(_PT_LOAD, _R | _X, 0, code_end, _PAGE)
    header += segment(_PT_LOAD, _R | _W, _PAGE, len(dynamic), _PAGE)
    header += segment(_PT_DYNAMIC, _R | _W, _PAGE, len(dynamic), 8)
    # Otherwise the loader would make the stack executable, which hardened systems reject.
    header += segment(_PT_GNU_STACK, _R | _W, 0, 0, 16)
    page = header + symbols + struct.pack(f"<{len(hash_words)}I", *hash_words) + strings
    return page.ljust(code_at, b"\0") + code.ljust(_PAGE - code_at, b"\0") + dynamic


def cache_dir() -> Path:
    """Return the user's cache folder of this package."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root) / "tvm-relay-toolchain"


def ensure() -> Path:
    """Return the path of the stand-in. Write it if it is missing or wrong.

    It lies in the user's cache folder. If that cannot be written, it lies in a temporary folder until the process
    ends.

    Raises:
        ToolchainError: on another processor than x86-64.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise ToolchainError(
            f"without an NVIDIA driver the TVM in bitblas loads on x86-64 only, and this is {platform.machine()}: "
            "build a TVM with Relay (0.12 to 0.19) yourself and set TVM_HOME to its folder"
        )
    content = image()
    folder = cache_dir() / f"stub-{hashlib.sha256(content).hexdigest()[:12]}"
    try:
        return _write(folder, content)
    except OSError:
        global _temporary
        _temporary = _temporary or tempfile.TemporaryDirectory(prefix="tvm-relay-toolchain-")
        return _write(Path(_temporary.name), content)


def _write(folder: Path, content: bytes) -> Path:
    """Write the stand-in into a folder, completely or not at all. A correct file stays."""
    path = folder / SONAME
    try:
        if path.read_bytes() == content:
            return path
    except OSError:
        pass
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o755)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path
