# SPDX-License-Identifier: Apache-2.0
"""tvm_stitch: memory-intensive operators stitched into few, fast kernels, for Apache TVM.

Importing the package imports nothing heavy. TVM is imported by the first call. The import gives TVM's threads all
cores, unless ``TVM_NUM_THREADS`` says otherwise, or TVM has made its threads before.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from .config import StitchConfig
from .support import old_paths
from .support.cores import use_all_cores

if TYPE_CHECKING:
    import os

    import tvm
    from tvm.target import Target

    from .report.report import Report

old_paths.install()
with contextlib.suppress(ValueError):  # the command line says what is wrong
    use_all_cores()

__version__ = "0.1.0"
__all__ = ["Report", "StitchConfig", "__version__", "compile", "explain", "export_library"]


def compile(
    mod: tvm.IRModule, target: Target | str = "native", config: StitchConfig | None = None, **options: Any
) -> tvm.relax.VMExecutable:
    """Compile a Relax module with stitching.

    Args:
        mod: a Relax IRModule, from an importer or a BlockBuilder.
        target: ``"native"`` (this machine's CPU), ``"llvm"`` (any CPU of its kind), ``"cuda"``, or any TVM target.
        config: stitching options.
        options: passed on to ``tvm.relax.build`` (``params``, ``tir_pipeline``, ``exec_mode``...).

    Returns:
        TVM's executable, for ``relax.VirtualMachine``.

    Raises:
        TypeError: if ``mod`` is not an IRModule.
        ValueError: for a target with a CPU, a CUDA architecture or a number that no machine has.
        StitchError: under ``StitchConfig(strict=True)``, if an operator is left to TVM.
        KeyboardInterrupt: on an interrupt, or the exception of the program's handler.
    """
    from .relax.build import build

    return build(mod, target, config, **options).executable


def explain(mod: tvm.IRModule, target: Target | str = "native", config: StitchConfig | None = None) -> Report:
    """Report how a Relax module is stitched for a target. No machine code is generated.

    Args:
        mod: a Relax module, as for ``compile``.
        target: a target, as for ``compile``. A GPU need not be present.
        config: stitching options.

    Returns:
        The report. It prints as a summary, shows as a page in a notebook, and writes pages and timelines.

    Raises:
        TypeError: if ``mod`` is not an IRModule.
        ValueError: for a target with a CPU, a CUDA architecture or a number that no machine has.
    """
    from .relax.report.explain import explain as report_on

    return report_on(mod, target, config)


def export_library(
    executable: tvm.relax.VMExecutable,
    path: str | os.PathLike[str],
    target: Target | str = "native",
    **options: Any,
) -> None:
    """Write the library of a compiled model, with CUDA kernels as machine code. It runs without Python.

    For targets without CUDA kernels this is ``executable.export_library(path)``.

    Args:
        executable: the result of ``compile``, ``tvm.compile`` or ``relax.build``.
        path: path of the library.
        target: the target of the executable.
        options: passed on to TVM's ``export_library``.

    Raises:
        TypeError: if ``executable`` is not a compiled model.
        OSError: if the path's folder does not exist, or cannot be written to.
        ValueError: if there are CUDA kernels, and the target is not a CUDA device.
        RuntimeError: if there are CUDA kernels, and neither nvcc nor NVRTC, or the compiler rejects them.
    """
    from .deploy.export import export_library as export

    export(executable, path, target, **options)


def __getattr__(name: str) -> Any:
    """Import sub-packages and names that need TVM on first use.

    Some sub-packages need different TVMs, or packages that only tests have.
    """
    if name in ("relax", "relay", "rules", "testing"):
        return importlib.import_module(f"{__name__}.{name}")
    if name == "Report":
        return importlib.import_module(f"{__name__}.report.report").Report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
