# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of repairs: run modules through TVM's own pipeline, or with one repair left out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tvm
from tvm import relax

from cuda_emulator import lower, run_lowered
from tests.repairs.needed import needed
from tvm_stitch.relax import pipeline

__all__ = [
    "CUDA",
    "LLVM",
    "left_to_tvm",
    "legalized_by",
    "module_of",
    "needed",
    "on_cpu",
    "on_gpu",
    "ours",
    "raises",
    "source",
    "stock",
    "without",
]

LLVM = tvm.target.Target("llvm")
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
ours = pipeline
"""The pipeline of tvm_stitch for a target, with every repair that is not left out."""


def without(name: str) -> AbstractContextManager[Any]:
    """Return a context in which the pass of a name does not run."""
    return tvm.transform.PassContext(disabled_pass=[name])


def raises(action: Callable[[], Any]) -> bool:
    """Return whether ``action`` ends in an exception."""
    try:
        action()
    except Exception:
        return True
    return False


def stock(target: tvm.target.Target) -> Any:
    """Return TVM's own pipeline for a target."""
    return relax.get_default_pipeline(target)


def left_to_tvm(target: tvm.target.Target) -> Any:
    """Return TVM's own pipeline with the repairs around its schedules, and without any stitching."""
    fuse = [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps(), relax.transform.FuseTIR()]
    schedules = module_of("relax.pipeline").default_schedules(target)
    return tvm.transform.Sequential([relax.transform.LegalizeOps(), *fuse, *schedules, stock(target)])


def legalized_by(table: dict[str, Any], target: tvm.target.Target) -> Any:
    """Return TVM's own pipeline in which a table of functions legalizes some operators."""
    return tvm.transform.Sequential([relax.transform.LegalizeOps(table), stock(target)])


def on_cpu(mod: tvm.IRModule, inputs: Sequence[np.ndarray], passes: Any = None) -> list[np.ndarray]:
    """Run ``main`` on the CPU, through TVM's own pipeline or through ``passes``."""
    executable = tvm.compile(mod, LLVM, relax_pipeline=passes or stock(LLVM))
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [each.numpy() for each in result]


def on_gpu(mod: tvm.IRModule, inputs: Sequence[np.ndarray], passes: Any = None) -> Any:
    """Run ``main`` in the emulator, through TVM's own pipeline or through ``passes``.

    Returns: the run, with ``outputs`` (arrays) and ``reports`` (bad accesses, races and unwritten values).
    """
    return run_lowered(lower(mod, CUDA, passes or stock(CUDA)), [x.copy() for x in inputs])


def source(mod: tvm.IRModule, passes: Any = None) -> str:
    """Return the CUDA C of a module, made by TVM's own pipeline or by ``passes``."""
    return lower(mod, CUDA, passes or stock(CUDA)).source


def module_of(name: str) -> Any:
    """Return a module by its path in tvm_stitch, such as ``"relax.pipeline"``, whose name may be a function's too."""
    return importlib.import_module(f"tvm_stitch.{name}")
