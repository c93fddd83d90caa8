# SPDX-License-Identifier: Apache-2.0
"""Lower one scheduled PrimFunc as TVM will lower it, to see the result beforehand."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.build import split_host_device_mods


def lowered(func: Any, target: Any) -> list[Any]:
    """Return the device functions that TVM's lowering makes of a scheduled function. For a CPU the list is empty.

    Raises:
        Exception: the error of TVM if it cannot lower the function.
    """
    _, devices = host_and_devices(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target)
    return [kernel for device in devices.values() for kernel in device.functions.values()]


def host_and_devices(mod: tvm.IRModule, target: Any) -> tuple[Any, Any]:
    """Return the functions that TVM's lowering makes of PrimFuncs.

    The first result holds the functions of the host, the second one by target the functions of devices.
    """
    if target.host is None:
        target = target.with_host(tvm.target.Target("llvm"))
    pipeline, _, _ = tirx.get_default_tir_pipeline(target)
    with target:
        return split_host_device_mods(pipeline(tirx.transform.BindTarget(target)(mod)))
