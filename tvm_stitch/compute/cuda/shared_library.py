# SPDX-License-Identifier: Apache-2.0
"""One of NVIDIA's libraries on this machine: its file, and the functions that call it, which models carry."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from ...deploy.embedded import Embedded

_ON_SYSTEMS = (
    "/usr/local/cuda/lib64",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)


@dataclass(eq=False)
class SharedLibrary:
    """A library that is opened at run time.

    Attributes:
        title: its name.
        names: possible names of its file, the newest first.
        in_wheels: folders of NVIDIA's wheels, relative to site-packages.
        variable: environment variable that names its file. With ``none`` the library counts as not installed.
        how_to_get_it: how to install it, for messages.
        computes: the operators that it computes, in words.
        kind: kind of these operators, as in options.
        function: this package's function that calls it.
        calls: C++ that defines the function, and one that opens the library. It compiles without the library.
        opened: whether this process has opened it.
    """

    title: str
    names: tuple[str, ...]
    in_wheels: tuple[str, ...]
    variable: str
    how_to_get_it: str
    computes: str
    kind: str
    function: str
    calls: Embedded
    opened: bool = False

    def find(self) -> Path | None:
        """Return the library's file: the environment variable's, else NVIDIA's wheels', PyTorch's, the system's.
        None if it is not installed.
        """
        if named := os.environ.get(self.variable):
            path = Path(named)
            return path if path.is_file() else None
        for name in self.names:
            for folder in _folders(self.in_wheels):
                if (folder / name).is_file():
                    return folder / name
        return None

    def missing(self) -> str | None:
        """Return the reason why the library cannot be called on this machine, in one line, or None if it can."""
        if self.opened:
            return None
        named = os.environ.get(self.variable)
        if self.find() is None:
            if named not in (None, "", "none"):
                return f"{self.variable} names no library: {named}"
            return f"{self.title} is not installed ({self.how_to_get_it})"
        return self.calls.needs()

    def load(self) -> None:
        """Open the library's file.

        Raises:
            RuntimeError: if the library or a C++ compiler is missing, with how to get it, or if it cannot be
                opened.
            OSError: if the cache folder cannot be used.
        """
        if self.opened:
            return
        if (reason := self.missing()) is not None:
            raise RuntimeError(reason)
        self.calls.module()[f"{self.function.rpartition('.')[0]}.open"](str(self.find()))
        self.opened = True


def calls(source: str, title: str) -> Embedded:
    """Return the C++ file of this folder that calls a library."""
    folder = Path(__file__).parent / "native"
    headers = tuple(folder / name for name in ("device.h", "cudnn.h", "tuned.h", "choices.h", "fastest.h"))
    return Embedded(folder / source, f"calls of {title}", headers)


def _folders(in_wheels: tuple[str, ...]) -> list[Path]:
    wheels = [place / folder for place in _places("nvidia") for folder in in_wheels]
    torch = [place / "torch" / "lib" for place in _places("torch")]
    named = [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    toolkit = [Path(home) / "lib64" for home in [os.environ.get("CUDA_HOME")] if home]
    return [*wheels, *torch, *named, *toolkit, *map(Path, _ON_SYSTEMS)]


def _places(package: str) -> list[Path]:
    """Return the folders that hold a package, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [Path(place).parent for place in (spec.submodule_search_locations or ())] if spec else []
