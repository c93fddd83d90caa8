# SPDX-License-Identifier: Apache-2.0
"""The external compiler ``tvm_stitch``: builds the kernels that scheduled stitch ops carry along.

TVM compiles functions whose attribute ``Compiler`` names a registered compiler outside its own lowering, and calls them
like its own from the graph executor, the VM and the AOT executor. That is all we need of it: everything else is
compiled exactly as without stitching.
"""

from __future__ import annotations

from typing import Any

import tvm

COMPILER = "tvm_stitch"
KERNEL_ATTR = "tvm_stitch.kernel"
"""Function attribute: the scheduled PrimFunc."""
TARGET_ATTR = "tvm_stitch.target"
"""Function attribute: the target it was scheduled for."""


@tvm.register_func("relay.ext." + COMPILER, override=True)
def build(func: Any) -> Any:
    """The runtime module of a scheduled stitch op, with the function under its global symbol.

    Shapes of arguments are not checked when it is called: they are the graph's own, and the AOT executor passes
    tensors without any.
    """
    name = str(func.attrs["global_symbol"])
    kernel, target = func.attrs[KERNEL_ATTR], func.attrs[TARGET_ATTR]
    context = tvm.transform.PassContext.current()
    config = {k: v for k, v in context.config.items() if str(k).startswith("tir.")}
    config["tir.disable_assert"] = True
    with target, tvm.transform.PassContext(opt_level=3, config=config):
        return tvm.build(tvm.IRModule({name: kernel}), target, name=name)


@tvm.register_func(f"relay.ext.{COMPILER}.constant_updater", override=True)
def constants(_func: Any, _name: str) -> dict[str, Any]:
    """The constants that an external function needs at run time: none, its kernel holds their values.

    Without this TVM makes each a parameter of the model, which the AOT executor then does not find.
    """
    return {}
