# SPDX-License-Identifier: Apache-2.0
"""Stitching for Relax: the passes, one file each, and the pipeline that puts them together.

Names are imported on first use: repairs are passes that use :mod:`.rewriting`, and the pipeline imports them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_MODULES = {
    "FuseRest": "..repairs.legalize.fuse_rest",
    "LiftWorkspace": ".stitch.lift_workspace",
    "MergeStitchOps": ".stitch.mark",
    "ScheduleStitchOps": ".stitch.schedule_stitch_ops",
    "StitchError": "..support.errors",
    "StitchOps": ".stitch.stitch_ops",
    "UnmarkEpilogues": ".stitch.mark",
    "in_half_precision": ".precision.half",
    "pipeline": ".pipeline",
}
"""The module of each public name."""

__all__ = list(_MODULES)


pipeline: Callable[..., Any]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)


class _Package(ModuleType):
    """This package, of which ``pipeline`` is the function and not the module that holds it."""

    @property
    def pipeline(self) -> Any:
        return __getattr__("pipeline")

    @pipeline.setter
    def pipeline(self, module: ModuleType) -> None:
        """Ignore the module, which Python's import binds to this name."""


sys.modules[__name__].__class__ = _Package
