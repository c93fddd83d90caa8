# SPDX-License-Identifier: Apache-2.0
"""Find the CUDA libraries to which the wheel's libtvm.so is linked, and load them before it.

The dynamic loader takes a loaded library for any other of the same soname, so nothing needs to be on
``LD_LIBRARY_PATH``.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from . import stub
from .errors import ToolchainError

DRIVER = "libcuda.so.1"
CUDA_LIBRARIES = {
    "libcudart.so.12": ("cuda_runtime", "nvidia-cuda-runtime-cu12==12.4.127"),
    "libnvrtc.so.12": ("cuda_nvrtc", "nvidia-cuda-nvrtc-cu12==12.4.127"),
}
"""By soname: the folder in NVIDIA's wheels, and pip's requirement that installs it."""

_RTLD_DI_LINKMAP = 2


@dataclass(frozen=True)
class Library:
    """A shared library in this process.

    Attributes:
        soname: its name for the dynamic loader.
        path: its file.
        is_stub: True for the stand-in of the driver (see ``stub``).
    """

    soname: str
    path: Path
    is_stub: bool = False


class _LinkMap(ctypes.Structure):
    """The beginning of the C library's ``struct link_map``."""

    _fields_ = [("l_addr", ctypes.c_void_p), ("l_name", ctypes.c_char_p)]


def path_of(library: ctypes.CDLL) -> Path:
    """Return the file a library was loaded from."""
    link_map = ctypes.POINTER(_LinkMap)()
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    if dlinfo(library._handle, _RTLD_DI_LINKMAP, ctypes.byref(link_map)) != 0:
        raise OSError(f"dlinfo failed for {library._name}")
    return Path(os.fsdecode(link_map.contents.l_name))


def in_wheels(soname: str) -> Path | None:
    """Return the path of a library in NVIDIA's wheels, or None."""
    spec = PathFinder.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / CUDA_LIBRARIES[soname][0] / "lib" / soname
        if path.is_file():
            return path
    return None


def load(soname: str) -> Library | None:
    """Load one of ``CUDA_LIBRARIES``: the one that is loaded already, else the wheel's, else the system's."""
    wheel = in_wheels(soname)
    attempts = [
        (soname, os.RTLD_NOLOAD),
        (str(wheel), 0),
        (soname, 0),
        (f"/usr/local/cuda/lib64/{soname}", 0),
    ]
    for name, flag in attempts:
        if name == "None":
            continue
        try:
            return Library(soname, path_of(ctypes.CDLL(name, os.RTLD_NOW | os.RTLD_GLOBAL | flag)))
        except OSError:
            continue
    return None


def load_driver() -> Library | None:
    """Load the driver's library like any program would, or return None if there is no driver."""
    try:
        driver = ctypes.CDLL(DRIVER, os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError:
        return None
    return Library(DRIVER, path_of(driver), is_stub=hasattr(driver, stub.MARKER))


def preload() -> Library:
    """Load the CUDA libraries that the wheel's libtvm.so needs. Return the driver's library, or its stub.

    Raises:
        ToolchainError: if the CUDA runtime or NVRTC is missing, or no stub can be created.
    """
    for soname, (_, requirement) in CUDA_LIBRARIES.items():
        if load(soname) is None:
            raise ToolchainError(
                f"{soname} was not found, and this TVM is linked to it (a GPU is not needed): pip install {requirement}"
            )
    driver = load_driver()
    if driver is not None:
        return driver
    path = stub.ensure()
    try:
        ctypes.CDLL(str(path), os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as error:
        raise ToolchainError(
            f"there is no NVIDIA driver, and its stand-in {path} does not load: {error}. If that folder is mounted "
            "noexec, let XDG_CACHE_HOME name one that is not"
        ) from error
    return Library(DRIVER, path, is_stub=True)
