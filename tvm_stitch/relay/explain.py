# SPDX-License-Identifier: Apache-2.0
"""Explain the effect of stitching on a Relay module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relay

from ..config import StitchConfig, checked_config
from ..report.report import Report
from ..target import resolve_target
from .hook import stitching


def explain(
    mod: tvm.IRModule,
    target: Any = "llvm",
    params: Mapping[str, Any] | None = None,
    config: StitchConfig | None = None,
) -> Report:
    """Report how ``relay.build`` inside :func:`tvm_stitch.relay.enable` stitches a module.

    Relay's passes run as for a build, under the current ``PassContext`` (its ``opt_level``, options, passes).
    Kernels are planned and emitted, but not compiled to machine code, so CUDA needs neither a GPU nor nvcc. The
    report does not show kernels that a compiler of machine code rejects, which ``relay.build`` leaves to TVM. For
    that, build, and use the ``report()`` of ``enable``.

    Args:
        mod: a Relay module, which is not changed.
        target: a TVM target or its string.
        params: values of parameters, which Relay folds into the module.
        config: stitching options.

    Raises:
        TypeError: if ``mod`` is no IRModule.
        StitchError: under ``StitchConfig(strict=True)``, for the first operator that cannot be stitched.
    """
    if not isinstance(mod, tvm.IRModule):
        raise TypeError(
            f"explain takes an IRModule, such as tvm.IRModule.from_expr makes of a function, not {type(mod).__name__}"
        )
    # Relay binds the parameters in the module itself, so it gets a copy.
    copy = tvm.IRModule(dict(mod.functions.items()), mod.type_definitions, attrs=mod.attrs)
    with stitching(checked_config(config), build=False) as recorder:
        relay.optimize(copy, resolve_target(target), params=dict(params or {}))
    return recorder.report()
