# SPDX-License-Identifier: Apache-2.0
"""The external compiler ``tvm_stitch``: builds the kernels that scheduled stitch ops carry.

A function's attribute ``Compiler`` may name a registered compiler. TVM then compiles the function outside its own
lowering. The graph executor, the VM and the AOT executor call it like any other. Everything else is compiled
exactly as without stitching.

Kernels are built when they are scheduled, not when TVM asks for them. An error that leaves an external compiler
ends the process. An earlier error only gives the operators back to TVM.

A MetaSchedule database could hold the kernels as well. But the option that makes TVM ask it gives naive schedules
to all matmuls and convolutions that the database lacks. With external functions any tuner serves the rest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import tvm
from tvm import relay

from .lower import PRIMITIVE, typed

COMPILER = "tvm_stitch"
KERNEL_ATTR = "tvm_stitch.kernel"
"""Function attribute: the scheduled PrimFunc."""
TARGET_ATTR = "tvm_stitch.target"
"""Function attribute: the target of the kernel."""

MOST_BUILT = 1024
"""Most modules that are kept until TVM asks for them. Older ones are built again on demand."""

_built: OrderedDict[int, tuple[Any, Any]] = OrderedDict()
_lock = threading.Lock()


def build(kernel: Any, target: tvm.target.Target) -> Any:
    """Build a scheduled PrimFunc under its global symbol, and keep the runtime module until TVM asks for it.

    Calls do not check the shapes of arguments. The graph fixes them, and the AOT executor passes tensors without
    shapes.

    Raises:
        TVMError, RuntimeError: if TVM, or the compiler of its CUDA C, rejects the kernel.
    """
    name = str(kernel.attrs["global_symbol"])
    context = tvm.transform.PassContext.current()
    config = {k: v for k, v in context.config.items() if str(k).startswith("tir.")}
    config["tir.disable_assert"] = True
    with target, tvm.transform.PassContext(opt_level=3, config=config):
        try:
            module = tvm.build(tvm.IRModule({name: kernel}), target, name=name)
        except BaseException:
            _leave_scopes_above(target)
            raise
    with _lock:
        _built[hash(kernel)] = (kernel, module)
        while len(_built) > MOST_BUILT:
            _built.popitem(last=False)
    return module


def _leave_scopes_above(target: tvm.target.Target) -> None:
    """Leave target scopes that an error left open, because TVM's CUDA builder enters one without a guard."""
    while not tvm.target.Target.current().same_as(target):
        tvm.target.Target.current().__exit__(None, None, None)


def external_function(func: Any, kernel: Any, target: tvm.target.Target) -> Any:
    """Return the function for which TVM calls the external compiler. It replaces a function that a kernel computes.

    Args:
        func: the computation, over the kernel's parameters.
        kernel: a scheduled PrimFunc with a global symbol.
        target: the target of the kernel.
    """
    func = typed(relay.Function(func.params, func.body, func.ret_type, func.type_params))
    attrs = {
        PRIMITIVE: tvm.tir.IntImm("int32", 1),
        "Compiler": COMPILER,
        "global_symbol": str(kernel.attrs["global_symbol"]),
        KERNEL_ATTR: kernel,
        TARGET_ATTR: target,
    }
    for key, value in attrs.items():
        func = func.with_attr(key, value)
    return func


@tvm.register_func("relay.ext." + COMPILER, override=True)
def module_of(func: Any) -> Any:
    """Return the runtime module of a scheduled stitch op, with the function under its global symbol."""
    kernel = func.attrs[KERNEL_ATTR]
    with _lock:
        known = _built.get(hash(kernel))
    if known is not None and kernel.same_as(known[0]):
        return known[1]
    return build(kernel, func.attrs[TARGET_ATTR])


@tvm.register_func(f"relay.ext.{COMPILER}.constant_updater", override=True)
def constants(_func: Any, _name: str) -> dict[str, Any]:
    """Return the constants that an external function needs at run time: none, because its kernel holds their
    values.

    Otherwise TVM turns each into a parameter of the model, which the AOT executor then does not find.
    """
    return {}
