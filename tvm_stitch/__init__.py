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

    from .front.compiled import Compiled
    from .report.report import Report

old_paths.install()
with contextlib.suppress(ValueError):  # the command line says what is wrong
    use_all_cores()

__version__ = "0.1.0"
__all__ = ["Report", "StitchConfig", "__version__", "compile", "explain", "export_library", "load"]


def compile(
    model: Any,
    target: Target | str = "native",
    config: StitchConfig | None = None,
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    dtype: Any = None,
    **options: Any,
) -> Compiled:
    """Compile a model with stitching.

    Args:
        model: a module of PyTorch, a program of ``torch.export``, an ONNX model, the path of a .onnx or .pt2 file, or a
            Relax IRModule.
        target: ``"native"`` (this machine's CPU), ``"llvm"`` (any CPU of its kind), ``"cuda"``, or any TVM target.
        config: stitching options.
        example_inputs: for a module of PyTorch, a tuple of its arguments, or a mapping of arguments by name.
        dynamic_shapes: for a module of PyTorch, its symbolic dimensions, as ``torch.export.export`` takes them.
        dtype: for a module or program of PyTorch, the type that its floating parameters, buffers and inputs get before
            it is imported: ``"float16"``, ``"bfloat16"`` or ``"float32"``.
        options: options of ``StitchConfig`` by name, which come before those of ``config``, and arguments of
            ``tvm.relax.build`` (``params``, ``tir_pipeline``, ``exec_mode``...).

    Returns:
        The compiled model. It is called with arrays of PyTorch or NumPy, and is TVM's executable for
        ``relax.VirtualMachine`` too.

    Raises:
        TypeError: if ``model`` is of another kind, if example inputs are missing, or if ``dtype`` is given for a model
            that is not PyTorch's.
        ValueError: for an unknown option or a bad value, or for a model that is not exported. Also for a target with a
            CPU, a CUDA architecture or a number that no machine has.
        StitchError: under ``StitchConfig(strict=True)``, if an operator is left to TVM.
        KeyboardInterrupt: on an interrupt, or the exception of the program's handler.
    """
    from .front.compiled import compiled
    from .target import resolve_target

    given = {"example_inputs": example_inputs, "dynamic_shapes": dynamic_shapes, "dtype": dtype}
    return compiled(model, resolve_target(target), config, given, **options)


def explain(
    model: Any,
    target: Target | str = "native",
    config: StitchConfig | None = None,
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    dtype: Any = None,
    **options: Any,
) -> Report:
    """Report how a model is stitched for a target. No machine code is generated.

    Args:
        model: a model, as for ``compile``.
        target: a target, as for ``compile``. A GPU need not be present.
        config: stitching options.
        example_inputs, dynamic_shapes, dtype: for models of PyTorch, as for ``compile``.
        options: options of ``StitchConfig`` by name, which come before those of ``config``.

    Returns:
        The report. It prints as a summary, shows as a page in a notebook, and writes pages and timelines.

    Raises:
        TypeError: if ``model`` is of another kind, if example inputs are missing, or if ``dtype`` is given for a model
            that is not PyTorch's.
        ValueError: for an unknown option or a bad value, or for a model that is not exported. Also for a target with a
            CPU, a CUDA architecture or a number that no machine has.
    """
    from .config import configured
    from .front.sources import source_of
    from .relax.report.explain import explain as report_on

    chosen = configured(config, options)
    return report_on(source_of(model, example_inputs, dynamic_shapes, dtype).mod, target, chosen)


def load(folder: str | os.PathLike[str]) -> Compiled:
    """Load a compiled model that ``Compiled.save`` or ``tvm-stitch compile`` wrote.

    Args:
        folder: the folder, or the path of the library in it.

    Returns:
        The compiled model, with the inputs, results and target of the saved one. Buffers that the model changes have
        the values of the time when it was saved.

    Raises:
        NotCompiled: a ValueError, if there is no compiled model, or if another user may have written it: loading a
            library runs its code.
        ValueError: if the model takes or returns a type of a package that is not imported.
        RuntimeError: if this machine's CPU lacks features that the code uses.
    """
    from .front.compiled import loaded

    return loaded(folder)


def export_library(
    executable: tvm.relax.VMExecutable,
    path: str | os.PathLike[str],
    target: Target | str = "native",
    **options: Any,
) -> None:
    """Write the library of a compiled model, with CUDA kernels as machine code. It runs without Python.

    A library for x86 names the CPU features that are missing where it is loaded. ``executable.export_library`` leaves
    that check out, and CUDA kernels as source.

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
    if name == "torch_backend":
        return importlib.import_module(f"{__name__}.front.dynamo").backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
