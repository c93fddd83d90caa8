# SPDX-License-Identifier: Apache-2.0
"""Libraries of compiled models that run without Python, on GPUs too: they hold CUDA kernels as machine code.

TVM writes CUDA C into a model's library, and compiles it through Python when a kernel is first launched. Here it is
compiled when the library is written, and the result replaces it.

TVM 0.27 serializes a CUDA module as a format, the kernels' signatures and CUDA C. While a library is written, such
modules are replaced by ones with another format and compiled code, which TVM's runtime loads directly.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.failures import reraise_fatal
from ..support.interrupts import watched
from ..target import resolve_target
from . import embedded
from .cpu_check import link_options
from .linking import check_linker, linking
from .scopes import without_empty_scopes

if TYPE_CHECKING:
    from tvm.target import Target

COMPILER_VARIABLE = "TVM_CUDA_COMPILE_MODE"
"""TVM's environment variable that selects the compiler of CUDA C: ``nvcc`` or ``nvrtc``."""

HOW_TO_GET_IT = (
    "nvcc of the CUDA toolkit on the PATH, or NVRTC: pip install cuda-bindings and nvidia-cuda-nvrtc"
)

_SOURCE_FORMAT = b"cuda"


def export_library(
    executable: Any, path: str | os.PathLike[str], target: Any = "native", **options: Any
) -> None:
    """Run ``executable.export_library(path)``, with CUDA kernels as machine code, and with a check of the CPU.

    The library runs on devices of the target's architecture, and if written with nvcc, on later ones too.

    Args:
        executable: the result of ``tvm_stitch.compile``, ``tvm.compile`` or ``relax.build``.
        path: path of the library.
        target: the target of the executable.
        options: passed on to TVM's ``export_library``.

    Raises:
        TypeError: if ``executable`` is not a compiled model.
        OSError: if the path's folder does not exist, or cannot be written to.
        ValueError: if there are CUDA kernels, and the target is no CUDA device.
        RuntimeError: if no compiler for CUDA kernels is installed, or it rejects them, or no C++ compiler links the
            library.
    """
    target = resolve_target(target)
    _check(executable, Path(path))
    checks_cpu = not options  # options may name another linker
    if checks_cpu:
        check_linker(target)
    if target.kind.name != "cuda" and _parents(executable.mod):
        said = f"the model has CUDA kernels, target={target.kind.name!r} has none"
        raise ValueError(f"{said}: give the target that it was compiled for")
    executable = without_empty_scopes(executable)
    with watched(), linking(Path(path)), _compiled_kernels(executable.mod, target):
        executable.export_library(str(Path(path)), **(link_options(target) if checks_cpu else options))


def _check(executable: Any, path: Path) -> None:
    if not hasattr(executable, "mod") or not callable(getattr(executable, "export_library", None)):
        raise TypeError(
            f"a compiled model is what tvm_stitch.compile or tvm.compile returns, not {type(executable).__name__}"
        )
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the path of a file, such as {path / 'model.so'}")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"no folder {path.absolute().parent} to write {path.name} to")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise PermissionError(f"{path} cannot be written")


def kernel_compiler() -> str | None:
    """Return the installed compiler of CUDA C: ``nvcc`` or ``nvrtc``, or None."""
    if named := os.environ.get(COMPILER_VARIABLE):
        return named.lower()
    if shutil.which("nvcc"):
        return "nvcc"
    try:
        return "nvrtc" if importlib.util.find_spec("cuda.bindings") else None
    except ImportError:
        return None


@contextlib.contextmanager
def _compiled_kernels(root: Any, target: Target) -> Iterator[None]:
    """Replace the CUDA modules below ``root`` by ones with compiled kernels, which cannot run in this process."""
    changed: list[tuple[Any, list[Any]]] = []
    try:
        for parent in _parents(root):
            before = list(parent.imports)
            after = [_compiled(m, target) if m.kind == "cuda" else m for m in before]
            changed.append((parent, before))
            _set_imports(parent, after)
        yield
    finally:
        for parent, before in changed:
            _set_imports(parent, before)


def _parents(module: Any) -> list[Any]:
    """Return the modules that import CUDA kernels: this module and those below it."""
    below = [parent for inner in module.imports for parent in _parents(inner)]
    return below + ([module] if any(inner.kind == "cuda" for inner in module.imports) else [])


def _set_imports(module: Any, imports: list[Any]) -> None:
    module.clear_imports()
    for inner in imports:
        module.import_module(inner)


def _compiled(module: Any, target: Target) -> Any:
    """Return a module of CUDA C with its kernels compiled.

    TVM writes the format, the kernels' signatures and the code. The format and the code are each preceded by their
    length.
    """
    source, data = module.inspect_source().encode(), embedded.serialize(module)
    start, end = _text(_SOURCE_FORMAT), _text(source)
    if not data.startswith(start):
        return module  # compiled already
    if not data.endswith(end):
        raise RuntimeError(
            "this TVM writes CUDA modules in a form that is not known: use its own export_library"
        )
    form, code = _compile(source.decode(), target)
    return embedded.serialized("cuda", _text(form.encode()) + data[len(start) : -len(end)] + _text(code))


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _compile(source: str, target: Target) -> tuple[str, bytes]:
    """Return the format of machine code, and the code."""
    from tvm.support.nvcc import compile_cuda

    compiler = kernel_compiler()
    if compiler is None:
        raise RuntimeError(f"nothing here compiles CUDA kernels: install {HOW_TO_GET_IT}")
    try:
        with target:
            if compiler == "nvrtc":
                return "cubin", bytes(compile_cuda(source, target_format="cubin", compiler=compiler))
            number = str(target.arch).removeprefix("sm_")
            arch = ["-gencode", f"arch=compute_{number},code=[sm_{number},compute_{number}]"]
            return "fatbin", bytes(compile_cuda(source, target_format="fatbin", arch=arch, compiler=compiler))
    except RuntimeError as err:
        reraise_fatal(err)
        raise RuntimeError(f"{compiler} rejects the kernels: {_complaint(str(err), source)}") from err


def _complaint(text: str, source: str) -> str:
    """Return the compiler's complaint from an error in which TVM puts the whole source before it."""
    message = text.replace(source, "").replace("Compilation error:", "")
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(error|fatal)\b", line)]
    return "; ".join(errors[:3] or lines[-1:]) or "no reason given"
