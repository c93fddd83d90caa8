# SPDX-License-Identifier: Apache-2.0
"""Choose the TVM for ``import tvm``. This searches files only: nothing is imported or loaded."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

WHEEL = "bitblas==0.1.0.post1"
"""The wheel that carries a TVM with Relay, as pip's requirement."""

forced = False
"""True after ``activate(force=True)``: the wheel's TVM hides any other."""


@dataclass(frozen=True)
class TvmInstall:
    """A TVM on disk.

    Attributes:
        package: the folder of the Python package ``tvm``.
        origin: ``"wheel"`` (carried in bitblas), ``"path"`` (importable without this package) or ``"environment"``
            (by
            ``TVM_HOME`` or ``TVM_LIBRARY_PATH``).
    """

    package: Path
    origin: str

    @property
    def has_relay(self) -> bool:
        """True if the package has Relay."""
        return (self.package / "relay" / "__init__.py").is_file()

    @property
    def version(self) -> str:
        """TVM's version according to its sources, or ``"unknown"``."""
        for source in ("_ffi/libinfo.py", "libinfo.py", "version.py", "_version.py"):
            try:
                text = (self.package / source).read_text(encoding="utf-8")
            except OSError:
                continue
            if match := re.search(r'^(?:__version__|version)\b[^=\n]*= *["\']([^"\']+)', text, re.M):
                return match[1]
        return "unknown"

    @property
    def python_dir(self) -> Path:
        """The folder to put on ``sys.path``."""
        return self.package.parent

    @property
    def library_dir(self) -> Path:
        """The folder of libtvm.so in a build of a source tree."""
        return self.package.parent.parent / "build"

    def same(self, other: TvmInstall | None) -> bool:
        """Return whether both are the same folder."""
        return other is not None and self.package.resolve() == other.package.resolve()


def bundled() -> TvmInstall | None:
    """Return the TVM inside the bitblas wheel, found without importing bitblas (which would import torch)."""
    spec = PathFinder.find_spec("bitblas")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        package = Path(folder) / "3rdparty" / "tvm" / "python" / "tvm"
        if (package / "__init__.py").is_file():
            return TvmInstall(package, "wheel")
    return None


def other_spec() -> ModuleSpec | None:
    """Return the spec that ``import tvm`` would find without this package. A folder without ``__init__.py`` does
    not count.
    """
    for finder in sys.meta_path:
        if getattr(finder, "of_toolchain", False) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec("tvm", None)
        if spec is not None:
            return spec if spec.origin and spec.submodule_search_locations else None
    return None


def importable() -> TvmInstall | None:
    """Return the TVM that is importable without this package."""
    spec = other_spec()
    return TvmInstall(Path(spec.origin).parent, "path") if spec and spec.origin else None


def from_environment() -> TvmInstall | None:
    """Return a source build with Relay that ``TVM_HOME`` or ``TVM_LIBRARY_PATH`` (its build folder) points to."""
    roots = []
    if home := os.environ.get("TVM_HOME"):
        roots.append(Path(home))
    if library := os.environ.get("TVM_LIBRARY_PATH"):
        roots.append(Path(library).parent)
    for root in roots:
        install = TvmInstall(root / "python" / "tvm", "environment")
        if install.has_relay:
            return install
    return None


def choose() -> TvmInstall | None:
    """Return the TVM to import: one that is importable anyway, else one the environment names, else the wheel's."""
    wheel = bundled()
    if forced:
        return wheel
    for install in (importable(), from_environment()):
        if install is not None and not install.same(wheel):
            return install
    return wheel
