# SPDX-License-Identifier: Apache-2.0
"""The requirements of a kernel with a grid barrier on its device, checked on the host's side."""

from __future__ import annotations

import tvm

from ... import compat
from ...compat import Buffer, Expr, T, tir
from ...device import DeviceModel
from ...graph.extent import Extent
from .. import builder as B

REFUSE = "tvm_stitch.refuse_device"
"""Global function that raises its argument as an error."""

_CUDA = 2  # DLDeviceType
_MULTIPROCESSORS = 7  # DeviceAttrKind of the runtime
_DEVICE_ID = 9  # the field of a tensor structure, by the numbers of TVM's builtins


def check_multiprocessors(device: DeviceModel, buffer: Buffer, needed: Extent | None = None) -> None:
    """Emit a check that the blocks of a cooperative launch can all be resident on the device that they run on.

    Call it while a function's body is built, before ``launch_thread``. On a device with too few multiprocessors,
    calls raise a RuntimeError that says so before anything is launched.

    Args:
        device: the device that the launch was planned for.
        buffer: a tensor parameter of the function. The check asks the device that holds it.
        needed: multiprocessors that the launch fills, if they are fewer than the device has. It is an expression if
            it depends on symbolic sizes.

    Raises:
        ValueError: if more are needed than the device has.
    """
    needed = device.sms if needed is None else needed
    if isinstance(needed, int) and not 0 < needed <= device.sms:
        raise ValueError(
            f"{device.name} has {device.sms} multiprocessors, a launch on it cannot need {needed}"
        )
    asked = tir.call_packed("runtime.GetDeviceAttr", _CUDA, _device_of(buffer), _MULTIPROCESSORS)
    present = B.bind(asked, "multiprocessors")
    count = f"{needed}, " if isinstance(needed, int) else ""
    message = (
        f"a kernel with a barrier across its grid was planned for a device with {device.sms} multiprocessors "
        f"({device.name}) and needs {count}more than the device of its arguments has: "
        "compile for that device, with a target that names its architecture, or with "
        "StitchConfig(multiprocessors=...)"
    )
    enough = compat.const(needed, "int32") if isinstance(needed, int) else tir.Cast("int32", needed)
    if compat.HOST_CODE_ASSERTS:
        with T.Assert(tir.GE(present, enough), message):
            pass
        return
    # If stitch ops are external functions, host code is compiled without assertions.
    with B.when(tir.LT(present, enough)):
        B.evaluate(tir.call_packed(REFUSE, compat.string(message)))


def _refuse(message: str) -> None:
    """Raise the error of a launch on a device that is too small.

    If this function is not registered, the call from host code fails as well.
    """
    raise RuntimeError(message)


if not compat.HOST_CODE_ASSERTS:
    tvm.register_func(REFUSE, _refuse, override=True)


def _device_of(buffer: Buffer) -> Expr:
    """Return the id of the device that holds a parameter.

    A body sees the addresses of its parameters only. But it can make a tensor structure. Lowering of host code fills
    in the device of the function's arguments, from where the id can be read back.
    """
    zero = compat.const(0, compat.buffer_dtype(buffer))
    strides = compat.intrinsic("handle", "reinterpret", compat.const(0, "uint64"))
    shape = compat.intrinsic("handle", "tvm_stack_make_shape", B.i64(1))
    rank, offset = compat.const(1, "int32"), compat.const(0, "int32")
    tensor = compat.intrinsic(
        "handle", "tvm_stack_make_array", buffer.data, shape, strides, rank, zero, offset
    )
    first, field = compat.const(0, "int32"), compat.const(_DEVICE_ID, "int32")
    return compat.intrinsic("int32", "tvm_struct_get", tensor, first, field)
