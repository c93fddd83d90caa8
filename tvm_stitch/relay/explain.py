# SPDX-License-Identifier: Apache-2.0
"""explain: what stitching makes of a Relay module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relay

from ..config import StitchConfig, checked_config
from ..explaining import Report
from ..target import resolve_target
from .hook import stitching


def explain(
    mod: tvm.IRModule,
    target: Any = "llvm",
    params: Mapping[str, Any] | None = None,
    config: StitchConfig | None = None,
) -> Report:
    """Report how ``relay.build`` inside :func:`tvm_stitch.relay.enable` stitches a module.

    Relay's passes run as for a build, under the current ``PassContext`` (its ``opt_level``, options, passes). Kernels
    are planned and emitted, but nothing is compiled to machine code, so CUDA needs neither a GPU nor nvcc. Only what a
    compiler of machine code would reject (and ``relay.build`` then leaves to TVM) does not show; for that, build, and
    take the ``report()`` of what ``enable`` gives.

    Args:
        mod: a Relay module; it is left as it is.
        target: a TVM target or its string.
        params: values of parameters, which Relay folds into the module.
        config: stitching options.

    Raises:
        TypeError: when ``mod`` is no IRModule.
        StitchError: under ``StitchConfig(strict=True)``, for the first operator that cannot be stitched.
    """
    if not isinstance(mod, tvm.IRModule):
        raise TypeError(
            f"explain takes an IRModule, such as tvm.IRModule.from_expr makes of a function, not {type(mod).__name__}"
        )
    # Relay binds the parameters in the module that it is given.
    copy = tvm.IRModule(dict(mod.functions.items()), mod.type_definitions, attrs=mod.attrs)
    with stitching(checked_config(config), build=False) as recorder:
        relay.optimize(copy, resolve_target(target), params=dict(params or {}))
    return recorder.report()
