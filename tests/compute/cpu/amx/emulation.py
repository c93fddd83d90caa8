# SPDX-License-Identifier: Apache-2.0
"""AMX on machines without it: kernels call C++ functions in the place of LLVM's intrinsics."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tvm_stitch.compute.cpu.amx import instruction as matrix_tiles
from tvm_stitch.target import has_feature

SOURCE = Path(__file__).with_suffix(".cc")


class Emulation:
    """The library of emulated instructions, whose functions this process's compiled code finds."""

    def __init__(self, folder: Path):
        library = folder / "amx.so"
        subprocess.run(
            [os.environ.get("CXX", "g++"), "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True
        )
        self.library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)

    def use(self, patch: pytest.MonkeyPatch) -> None:
        """Give every CPU the emulated AMX."""
        source = matrix_tiles.TileInstruction.source.fget
        assert source is not None

        def emulated(instruction: matrix_tiles.TileInstruction) -> str:
            return (
                str(source(instruction))
                .replace("@llvm.x86.", "@emulated_")
                .replace("@syscall", "@emulated_syscall")
            )

        def feature(target: Any, name: str) -> bool:
            return name.startswith("amx-") or name == "avx512f" or has_feature(target, name)

        patch.setattr(matrix_tiles.TileInstruction, "source", property(emulated))
        patch.setattr(matrix_tiles, "has_feature", feature)

    @property
    def faults(self) -> int:
        """Uses of registers without a configuration, and configurations without a release."""
        return int(self.library.faults_of_emulation())

    @property
    def products(self) -> int:
        """Executed products of tiles."""
        return int(self.library.products_of_emulation())

    def refuse(self, refuse: bool) -> None:
        """Let the operating system refuse the registers, or give them."""
        self.library.refuse_in_emulation(int(refuse))
