# SPDX-License-Identifier: Apache-2.0
"""Models that a C++ program without Python runs: how it is built and called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi

from tvm_stitch.deploy import native_code

ROOT = Path(__file__).resolve().parents[2]
FFI = Path(tvm_ffi.libinfo.find_libtvm_ffi())
RUNTIME = Path(tvm.libinfo.find_libtvm_runtime())
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
F32 = "float32"
BARE = {"PATH": os.environ.get("PATH", "")}
"""The environment of a process that finds nothing of this one's Python."""


def compiler() -> str:
    try:
        return native_code.compiler("the C++ program")[0]
    except RuntimeError as error:
        pytest.skip(str(error))


def built(source: str, folder: Path) -> Path:
    """Make an example, in a folder of its own with the two libraries that it is linked against."""
    folder.mkdir(parents=True)
    for needed in (FFI, RUNTIME):
        (folder / needed.name).symlink_to(needed)
    includes = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", *(f"-isystem{path}" for path in includes)]
    links = [f"-L{folder}", "-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi", "-ldl", "-Wl,-rpath,$ORIGIN"]
    made = folder / Path(source).stem
    command = [compiler(), *flags, str(ROOT / "examples" / source), *links, "-o", str(made)]
    subprocess.run(command, check=True, timeout=120)
    return made


def run(
    program: Path, folder: Path, model: Path, *arrays: np.ndarray, cuda: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a model on arrays in a folder, from which :func:`outputs` reads."""
    words = []
    for i, array in enumerate(arrays):
        array.tofile(folder / f"input{i}.bin")
        words.append(f"input{i}.bin:{array.dtype}:{','.join(map(str, array.shape))}")
    device = ["--device", "cuda"] if cuda else []
    command = [str(program), *device, os.path.relpath(model, folder), *words]
    return subprocess.run(
        command, cwd=folder, env={**BARE, **env}, capture_output=True, text=True, check=False, timeout=60
    )


def outputs(done: subprocess.CompletedProcess[str], folder: Path) -> list[np.ndarray]:
    assert done.returncode == 0, done.stderr
    found = []
    for line in done.stdout.splitlines():
        name, dtype, shape = line.split(":")
        found.append(np.fromfile(folder / name, dtype).reshape([int(n) for n in shape.split(",") if n]))
    return found
