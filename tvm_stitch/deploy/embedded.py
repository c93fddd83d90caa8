# SPDX-License-Identifier: Apache-2.0
"""C++ functions that a model calls: compiled once, run in this process, and linked into the model's library.

The C++ exports its functions like a library of TVM, and calls TVM's FFI through its C interface only. It is
compiled to an object. From that a library is linked for the process, and TVM's ``export_library`` links the object
into the model's library. (``static_library``, TVM's module of an object, does not run. Each ``VirtualMachine``
would first link the whole model, weights included.) The virtual machine first looks for a function in the model's
library, so each model has its copy. ``exec_mode="compiled"`` looks only in the registry. The first copy that a
process loads registers itself there, and therefore stays loaded.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from ..support.private_files import check_own_file
from .native_code import cache_folder, compile_whole, compiler

_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall")
_WHO = "the modules that travel with a model are compiled once, by a C++ compiler ($CXX or g++)"
_MODULE_SOURCE = Path(__file__).with_suffix(".cc")


@dataclass(frozen=True)
class Embedded:
    """One C++ file that defines functions like a library of TVM, and needs only TVM's FFI.

    Attributes:
        source: the file.
        what: its contents, for messages.
        headers: this package's headers that it includes.
    """

    source: Path
    what: str
    headers: tuple[Path, ...] = ()

    def needs(self) -> str | None:
        """Return the reason why it cannot be compiled here, in one line, or None if it can or is in the cache."""
        if all(path.exists() for path in (self._object(), self._library(), _module_library())):
            return None
        try:
            self._compiler()
        except RuntimeError as error:
            return str(error)
        return None

    def module(self) -> Any:
        """Return the functions as a module that runs in this process.

        If an executable imports the module, ``export_library`` links the functions into the executable's library.

        Raises:
            RuntimeError: if there is no C++ compiler, or it rejects the source.
            OSError: if the cache folder cannot be used.
        """
        return _module(self)

    def library(self) -> Path:
        """Return the library that this process runs. It is compiled once.

        Raises:
            RuntimeError: if there is no C++ compiler, or it rejects the source.
            OSError: if the cache folder cannot be used.
        """
        return self._build()[1]

    def _compiler(self) -> str:
        return compiler(f"{self.what} are compiled once, by a C++ compiler ($CXX or g++)")[0]

    def _object(self) -> Path:
        return _cached((self.source, *self.headers), ".o")

    def _library(self) -> Path:
        return _cached((self.source, *self.headers), ".so")

    def _build(self) -> tuple[Path, Path]:
        """Return the object, and the library that is linked from it."""
        object_file, library = self._object(), self._library()
        if not object_file.exists():
            flags = [*_compile_flags(self.source), "-c", str(self.source)]
            compile_whole([self._compiler(), *flags], object_file, self.what)
        if not library.exists():
            compile_whole([self._compiler(), "-shared", str(object_file), *_link_flags()], library, self.what)
        return check_own_file(object_file), check_own_file(library)


@functools.cache
def _module(embedded: Embedded) -> Any:
    object_file, library = embedded._build()
    return _function("create")(tvm_ffi.load_module(str(library)), object_file.read_bytes())


def serialize(module: Any) -> bytes:
    """Return the bytes that TVM writes of a module into a model's library.

    Raises:
        RuntimeError: if there is no C++ compiler, or the module has no such form.
        OSError: if the cache folder cannot be used.
    """
    return bytes(_function("serialize")(module))


def serialized(kind: str, data: bytes) -> Any:
    """Return a module from bytes of that kind, for writing into a model's library. It cannot run in this process.

    Raises:
        RuntimeError: if there is no C++ compiler.
        OSError: if the cache folder cannot be used.
    """
    return _function("serialized")(kind, data)


def _function(name: str) -> Any:
    """Return a function of ``embedded.cc``."""
    full = f"tvm_stitch.deploy.embedded.{name}"
    if tvm.get_global_func(full, allow_missing=True) is None:
        path = _module_library()
        if not path.exists():
            flags = [*_compile_flags(_MODULE_SOURCE), "-shared", str(_MODULE_SOURCE), *_link_flags()]
            compile_whole([compiler(_WHO)[0], *flags], path, "the modules that travel with a model")
        tvm_ffi.load_module(str(check_own_file(path)))
    return tvm.get_global_func(full)


def _module_library() -> Path:
    return _cached((_MODULE_SOURCE,), ".so")


@functools.cache
def _cached(sources: tuple[Path, ...], suffix: str) -> Path:
    # The compiler's version is left out, so that a compiled file serves machines without a compiler.
    contents = (
        *(source.read_bytes() for source in sources),
        repr(_FLAGS).encode(),
        tvm_ffi.__version__.encode(),
    )
    digest = hashlib.sha256(b"".join(contents)).hexdigest()[:24]
    return cache_folder(sources[0].stem) / f"{sources[0].stem}-{digest}{suffix}"


def _compile_flags(source: Path) -> list[str]:
    """Return flags with the folders of headers, and flags that keep this machine's folders out of messages.

    Messages travel with models.
    """
    includes = sorted({tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()})
    hidden = [f"-fmacro-prefix-map={folder}/=" for folder in (*includes, source.parent)]
    return [*_FLAGS, *hidden, *(f"-I{folder}" for folder in includes)]


def _link_flags() -> list[str]:
    """Return flags that link TVM's FFI by name: the process has it loaded already."""
    ffi = Path(tvm_ffi.libinfo.find_libtvm_ffi()).parent
    return [f"-L{ffi}", "-ltvm_ffi", f"-Wl,-rpath,{ffi}", "-ldl"]
