# SPDX-License-Identifier: Apache-2.0
"""Compiles the emulator's runtime and kernels with g++, and keeps the results in a cache folder."""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

from ..private_files import check_own_file, private_folder

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
    # The runtime has the hooks: the sanitizer's own library must not be linked.
    "-nostdlib",
)


def cache_folder() -> Path:
    """The folder of compiled kernels, which only this user may write: libraries are loaded from it.

    It lies in $TVM_STITCH_CACHE_DIR, else below the user's cache folder. Where the latter cannot be used, a warning
    says why, and a temporary one serves this process.

    Raises:
        PermissionError: if $TVM_STITCH_CACHE_DIR names a folder that others may write.
        OSError: if it names one that cannot be made.
    """
    if root := os.environ.get("TVM_STITCH_CACHE_DIR"):
        return private_folder(Path(root) / "emulator")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "tvm_stitch" / "emulator"
    try:
        return private_folder(folder)
    except OSError as error:
        return _temporary_folder(str(error))


@functools.cache
def _temporary_folder(why: str) -> Path:
    """A folder that lasts as long as this process."""
    warnings.warn(
        f"compiled kernels are not kept: {why}; TVM_STITCH_CACHE_DIR names another folder", stacklevel=3
    )
    folder = tempfile.mkdtemp(prefix="tvm_stitch-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def _compiler() -> tuple[str, str]:
    """Path and version of the C++ compiler ($CXX or g++). Raises RuntimeError if there is none."""
    command = os.environ.get("CXX", "g++")
    path = shutil.which(command)
    if path is None:
        raise RuntimeError(
            f"the emulator needs a C++ compiler with -fsanitize=thread: {command} was not found"
        )
    done = subprocess.run(
        [path, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    return path, done.stdout


@functools.cache
def _runtime_hash() -> str:
    digest = hashlib.sha256(repr((_compiler(), RUNTIME_FLAGS, RUNTIME_NAME)).encode())
    for path in sorted(p for p in RUNTIME.rglob("*") if p.is_file()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _compile(arguments: list[str], output: Path) -> None:
    """Runs the compiler; the output appears at once and whole, so that processes may share the cache."""
    with tempfile.NamedTemporaryFile(
        dir=output.parent, prefix=output.stem, suffix=".tmp", delete=False
    ) as scratch:
        pass
    try:
        done = subprocess.run(
            [_compiler()[0], *arguments, "-o", scratch.name],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error:" in line), "")
            raise RuntimeError(f"the C++ compiler rejected a kernel: {first}\n{done.stderr[:6000]}")
        os.chmod(scratch.name, 0o700)  # the linker makes the file anew, as the umask has it
        os.replace(scratch.name, output)
    finally:
        if os.path.exists(scratch.name):
            os.unlink(scratch.name)


@functools.cache
def load_runtime() -> tuple[ctypes.CDLL, Path]:
    """Compiles the runtime if needed and loads it. Returns it and its path."""
    path = cache_folder() / RUNTIME_NAME.format(_runtime_hash())
    if not path.exists():
        # Kernels find the runtime by this name among what the process has loaded, wherever it was loaded from.
        flags = [*RUNTIME_FLAGS, f"-Wl,-soname,{path.name}"]
        _compile([*flags, *(str(p) for p in sorted(RUNTIME.glob("*.cc")))], path)
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
    """Compiles C++ from prepare_source in one go, or finds it in the cache, and loads it.

    Raises RuntimeError with the compiler's messages if it does not compile.
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
            _compile([*flags, str(runtime_path), "-lm", "-lgcc", "-lc"], path)
        finally:
            os.unlink(source.name)
    del runtime
    return ctypes.CDLL(str(check_own_file(path)))
