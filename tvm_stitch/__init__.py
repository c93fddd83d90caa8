# SPDX-License-Identifier: Apache-2.0
"""tvm_stitch: memory-intensive operators stitched into few, fast kernels, for Apache TVM.

Importing the package imports nothing heavy: TVM comes with the first call.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .config import StitchConfig
from .support import old_paths

if TYPE_CHECKING:
    from .report.report import Report

old_paths.install()

__version__ = "0.1.0"
__all__ = ["Report", "StitchConfig", "__version__", "compile", "explain", "export_library"]


def compile(mod: Any, target: Any = "native", config: StitchConfig | None = None, **options: Any) -> Any:
    """Compile a Relax module with stitching.

    Args:
        mod: a Relax IRModule, as an importer or BlockBuilder makes it.
        target: ``"native"`` (this machine's CPU), ``"llvm"`` (any CPU of its kind), ``"cuda"``, or any TVM target.
        config: stitching options.
        options: passed on to ``tvm.relax.build`` (``params``, ``tir_pipeline``, ``exec_mode``...).

    Returns: TVM's executable, for ``relax.VirtualMachine``.

    Raises:
        TypeError: when ``mod`` is no IRModule.
        ValueError: for a target with a CPU, a CUDA architecture or a number that no machine has.
        StitchError: under ``StitchConfig(strict=True)``, for what is left to TVM.
        KeyboardInterrupt: on an interrupt, or what the program's own handler raises.
    """
    from .relax.build import build

    return build(mod, target, config, **options).executable


def explain(mod: Any, target: Any = "native", config: StitchConfig | None = None) -> Report:
    """Report how a Relax module is stitched for a target; nothing is compiled to machine code.

    Args:
        mod: as ``compile`` takes it.
        target: as ``compile`` takes it. A GPU need not be there.
        config: stitching options.

    Returns: the report. Printed it is a summary, in a notebook a page; it writes pages and timelines.

    Raises:
        TypeError: when ``mod`` is no IRModule.
        ValueError: for a target with a CPU, a CUDA architecture or a number that no machine has.
    """
    from .relax.report.explain import explain as report_on

    return report_on(mod, target, config)


def export_library(executable: Any, path: Any, target: Any = "native", **options: Any) -> None:
    """Write the library of a compiled model, with CUDA kernels as machine code: it runs without Python.

    For targets without CUDA kernels this is ``executable.export_library(path)``.

    Args:
        executable: what ``compile``, ``tvm.compile`` or ``relax.build`` returned.
        path: of the library.
        target: what it was compiled for.
        options: passed on to TVM's ``export_library``.

    Raises:
        TypeError: if ``executable`` is not a compiled model.
        OSError: if the path's folder does not exist, or cannot be written to.
        ValueError: if there are CUDA kernels, and the target is no CUDA device.
        RuntimeError: if there are CUDA kernels, and neither nvcc nor NVRTC, or it rejects them.
    """
    from .deploy.export import export_library as export

    export(executable, path, target, **options)


def __getattr__(name: str) -> Any:
    """On first use: sub-packages, which need different TVMs or packages that only tests have; and what needs TVM."""
    if name in ("relax", "relay", "rules", "testing"):
        return importlib.import_module(f"{__name__}.{name}")
    if name == "Report":
        return importlib.import_module(f"{__name__}.report.report").Report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
