# SPDX-License-Identifier: Apache-2.0
"""The launcher of parallel regions that compiled CPU code calls in the place of TVM's thread pool.

TVM's code finds its pool through two variables of each library, which TVM's runtime sets when it loads the library. A
piece of LLVM IR that is imported into the code defines these two names before TVM does. TVM's runtime does not see
them: their visibility is hidden, and they are aliases. They hold the addresses of functions of ``native/launcher.cc``,
which is linked into the model's library, and loaded into the process that compiles it.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....config import StitchConfig
from ....deploy.embedded import Embedded
from ....target import other_machine

if TYPE_CHECKING:
    from tvm.target import Target

EXTENT = "tvm_stitch_parallel_extent_1"
"""The function that is called before a region with the number of its loop's iterations, or 0 if it has barriers."""

_FOLDER = Path(__file__).parent / "native"
CODE = Embedded(
    _FOLDER / "launcher.cc", "the launcher of parallel regions", tuple(sorted(_FOLDER.glob("*.h")))
)

_CALLED = {
    "TVMBackendParallelLaunch": "tvm_stitch_parallel_launch_1",
    "TVMBackendParallelBarrier": "tvm_stitch_parallel_barrier_1",
}
"""Functions of the launcher, by TVM's functions that they replace."""

SOURCE = "".join(
    f"""\
@{ours} = external global i8
@{ours}_address = weak_odr hidden constant ptr @{ours}
@__{theirs} = weak hidden alias ptr, ptr @{ours}_address
"""
    for theirs, ours in _CALLED.items()
)
"""LLVM IR that gives TVM's names the launcher's addresses. TVM's own definitions of the names give way to it."""


def why_not(target: Target, config: StitchConfig) -> str:
    """Return the reason why a target's parallel regions run in TVM's pool, or "" if they run in the launcher."""
    if config.tvm_thread_pool:
        return "the option tvm_thread_pool asks for it"
    if target.kind.name != "llvm":
        return "code for this kind of target does not call the launcher"
    if machine := other_machine(target):
        return f"the launcher is compiled for this machine, and the target is {machine}"
    return CODE.needs() or ""


def used(target: Target, config: StitchConfig) -> str:
    """Return the words for the pool in which a target's parallel regions run, or "" for code that has none."""
    if target.kind.name != "llvm":
        return ""
    why = why_not(target, config)
    return f"TVM's pool, because {why}" if why else "tvm_stitch's launcher"


@functools.cache
def module() -> Any:
    """Return the launcher as a module that runs in this process, and travels with an executable that imports it.

    Raises:
        RuntimeError: if there is no C++ compiler, or it rejects the source.
        OSError: if the cache folder cannot be used.
    """
    compiled = CODE.module()
    ctypes.CDLL(str(CODE.library()), mode=ctypes.RTLD_GLOBAL)  # TVM's JIT looks for names there
    return compiled
