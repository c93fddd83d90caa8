# SPDX-License-Identifier: Apache-2.0
"""Registers, shared memory and spills of kernels, as the CUDA compiler reports them. No GPU is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tvm.support import nvcc

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_PROPERTIES = re.compile(r"Function properties for (?P<name>\S+)")
_MEMORY = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"Used (?P<registers>\d+) registers(?P<rest>.*)")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class KernelResources:
    """One kernel's 32-bit registers a thread, static shared memory a block, and spilled and stack bytes a thread.

    ``spilled`` counts stores and loads. Dynamic shared memory is chosen at launch and is not counted.
    """

    registers: int
    shared: int
    spilled: int
    stack: int


def has_compiler() -> bool:
    """Return whether nvcc is installed."""
    return shutil.which("nvcc") is not None


def kernel_resources(cuda_source: str, arch: str = "sm_90") -> dict[str, KernelResources]:
    """Return the resources of each kernel of a CUDA source, compiled for ``arch`` as TVM does at the first launch.

    Raises:
        FileNotFoundError: if there is no nvcc.
        RuntimeError: with the compiler's messages, if it refuses the source.
    """
    if not has_compiler():
        raise FileNotFoundError("nvcc is not on the path: install the CUDA toolkit")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.cu"
        source.write_text(cuda_source)
        command = [
            "nvcc",
            "--cubin",
            "-O3",
            "-arch",
            arch,
            *_flags(),
            "-o",
            f"{folder}/kernels.cubin",
            str(source),
        ]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        raise RuntimeError(f"nvcc: {done.stderr or done.stdout}")
    return _parse(done.stdout + done.stderr)


def _flags() -> list[str]:
    """Return TVM's compiler flags that change code. They depend on its environment variables."""
    ptxas = ",".join(nvcc._ptxas_option_flags())
    flags = ["--expt-relaxed-constexpr", "--expt-extended-lambda", f"--ptxas-options={ptxas}"]
    return flags if os.environ.get("TVM_CUDA_NVCC_NO_FAST_MATH") else ["--use_fast_math", *flags]


def _parse(log: str) -> dict[str, KernelResources]:
    resources: dict[str, KernelResources] = {}
    name, memory, function = "", (0, 0), ""
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name, memory = entry["name"], (0, 0)
        elif properties := _PROPERTIES.search(line):
            function = properties["name"]
        elif (
            sizes := _MEMORY.search(line)
        ) and function == name:  # functions called by a kernel have lines too
            memory = int(sizes["stores"]) + int(sizes["loads"]), int(sizes["stack"])
        elif (used := _USED.search(line)) and name:
            shared = _SHARED.search(used["rest"])
            resources[name] = KernelResources(
                int(used["registers"]), int(shared[1]) if shared else 0, *memory
            )
            name = ""
    return resources
