# SPDX-License-Identifier: Apache-2.0
"""Support the former import paths of documented modules. Each use raises a deprecation warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_CONVERTERS = ("arithmetic", "backward", "converters", "indexing", "names", "pooling", "products", "resizing")

MOVED = {
    "tvm_stitch.errors": "tvm_stitch.support.errors",
    "tvm_stitch.onnx_misread": "tvm_stitch.importers.onnx.misread",
    "tvm_stitch.onnx_names": "tvm_stitch.importers.onnx.names",
    "tvm_stitch.relax.fuse_rest": "tvm_stitch.repairs.legalize.fuse_rest",
    "tvm_stitch.relax.half_precision": "tvm_stitch.relax.precision.half",
    "tvm_stitch.relax.lift_workspace": "tvm_stitch.relax.stitch.lift_workspace",
    "tvm_stitch.relax.mark": "tvm_stitch.relax.stitch.mark",
    "tvm_stitch.relax.schedule_stitch_ops": "tvm_stitch.relax.stitch.schedule_stitch_ops",
    "tvm_stitch.relax.stitch_ops": "tvm_stitch.relax.stitch.stitch_ops",
    **{f"tvm_stitch.torch_{name}": f"tvm_stitch.importers.torch.{name}" for name in _CONVERTERS},
}
"""New paths of documented modules, by their old paths."""


class _OldPaths(MetaPathFinder, Loader):
    """Finds the old paths, and loads modules that forward every name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        warnings.warn(
            f"{module.__name__} is now {new}; the old path will go with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        new_module = importlib.import_module(new)
        module.__doc__ = new_module.__doc__
        module.__getattr__ = lambda name: getattr(new_module, name)  # type: ignore[method-assign]
        module.__dir__ = lambda: dir(new_module)  # type: ignore[method-assign]


def install() -> None:
    """Register the old paths with Python's import. A second call changes nothing."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(_OldPaths())
