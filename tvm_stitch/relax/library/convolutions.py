# SPDX-License-Identifier: Apache-2.0
"""LibraryConvolutions: convolutions of a CUDA device become calls of cuDNN.

The call takes ``(data, weight, numbers, mode)``. The numbers are groups, strides, paddings and dilations. The C++
describes the convolution to cuDNN as a graph, and asks it for engines. It drops engines whose numerical notes say
that they narrow inputs, sum in half types, transform, or vary from run to run. Gradients of weights may be
transformed. (cuDNN's older interface, with eight algorithms, was two to six times slower than PyTorch in half types.)

A bias, a residual and ReLU behind a convolution of half types are part of the call (``fused_convolutions``). They are
operators of the same graph, and the algorithms are those of convolutions alone.

If tensor cores compute, ``ConvolutionLayouts`` moves channels innermost first. The gradient of a weight is requested
from cuDNN as such. A transposed convolution that ``PhasedConvolutions`` has left is requested as the gradient of
data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...compute.cuda import library
from ...graph.dtype import HALF, MULTIPLIED
from ...graph.extent import is_multiple, is_static
from ...support.failures import Refusal
from ...support.module_pass import module_pass
from ..legalize.transposed_convolutions import SPATIAL
from ..rewriting.calls import with_bound_calls
from ..rewriting.compute_pass import ComputePass
from ..rewriting.functions import own_functions
from ..rewriting.operators import operator_name
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import bytes_of, has_elements, shape_of
from .calls import check_capability, has_calls
from .fused_convolutions import FusedConvolution, fused_convolutions
from .weight_gradients import WeightGradient, WeightGradients

CHANNELS_FIRST, CHANNELS_LAST = "channels_first", "channels_last"
WEIGHT_GRADIENT, DATA_GRADIENT = "weight_gradient", "data_gradient"

LAYOUTS = {
    ("NCW", "OIW"): CHANNELS_FIRST,
    ("NCHW", "OIHW"): CHANNELS_FIRST,
    ("NCDHW", "OIDHW"): CHANNELS_FIRST,
    ("NWC", "OWI"): CHANNELS_LAST,
    ("NHWC", "OHWI"): CHANNELS_LAST,
    ("NDHWC", "ODHWI"): CHANNELS_LAST,
}
"""The layouts of data and weight that the library takes."""

TRANSPOSED_LAYOUTS = {
    ("NCW", "IOW"): CHANNELS_FIRST,
    ("NCHW", "IOHW"): CHANNELS_FIRST,
    ("NCDHW", "IODHW"): CHANNELS_FIRST,
}
"""The same for transposed convolutions, which are gradients of a convolution's data."""

OPERATORS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d", *SPATIAL)


@module_pass
class LibraryConvolutions(ComputePass):
    """Replace ``R.nn.conv1d``, ``conv2d``, ``conv3d`` and transposed ones by calls of cuDNN.

    Algorithms for static shapes are timed at the first call. cuDNN's heuristic chooses the others. Runs before
    ``LegalizeOps``. The module's decisions record for each convolution what computes it, and why. With
    ``compute="auto"`` all convolutions are left to TVM if cuDNN is not installed.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        functions = dict(own_functions(mod))
        wanted = is_convolution, library.CUDNN, self.config, self.computed
        if not has_calls(functions.values(), "convolution", *wanted):
            return mod
        fused: dict[relax.Var, FusedConvolution] = {}
        for func in functions.values():
            fused |= fused_convolutions(func, self._fuses)
        rule = Rule(
            "the library computes a bias, a residual and ReLU on its sums",
            lambda match: self._fused(match, fused[match.var]),
            variables=fused,
            leaves_unused=True,
        )
        mod = apply_rules(mod, [rule]) if fused else mod
        gradients = WeightGradients(mod)

        def called(builder: relax.BlockBuilder, call: relax.Call, var: relax.Var) -> relax.Expr:
            return _Rewriter(self, builder, gradients).replaced(call, var) if is_convolution(call) else call

        return with_bound_calls(mod, OPERATORS, called, why="the library is faster than TVM's schedule")

    def _fuses(self, call: relax.Call) -> bool:
        """Return whether the library computes what follows a convolution in its own kernels."""
        choices, shapes = self.device.choices, (shape_of(call.args[0]), shape_of(call))
        if not is_convolution(call) or str(call.ty.dtype) not in HALF or int(call.attrs.groups) > 1:
            return False
        if any(shape is None or not is_multiple(shape[-1], choices.fused_channels) for shape in shapes):
            return False
        return _layout_or_none(self.target, call) == CHANNELS_LAST

    def _fused(self, match: Match, fused: FusedConvolution) -> relax.Expr | None:
        """Return the call of a convolution and of what follows it, or None if its bias does not fit its type."""
        call, dtype = match.values[fused.convolution], str(match.before.ty.dtype)
        with np.errstate(over="ignore"):
            bias = np.asarray(fused.bias).astype(dtype)
        if not np.isfinite(bias.astype("float32")).all():
            return None
        more = [relax.const(bias, dtype)] + ([] if fused.residual is None else [match.now(fused.residual)])
        behind = ["bias", *["residual"] * (fused.residual is not None), *["relu"] * fused.relu]
        args = [*map(match.now, call.args), *more]
        words = [CHANNELS_LAST, *["timed"] * is_static(shape_of(call) or ()), *behind]
        self.computed["conv2d", fused.end] = (
            f"{library.CUDNN.title}: channels last, with {' and '.join(behind)}"
        )
        workspace = self.device.choices.convolution_workspace_bytes
        result = library_call(args, numbers_of(call), words, match.before.ty.shape, dtype, workspace)
        return relax.TupleGetItem(match.emit(result), 0)


def is_convolution(value: relax.Expr) -> bool:
    """Return whether a value is an operator that the library may compute, of tensors that have elements."""
    return operator_name(value) in OPERATORS and has_elements(*value.args, value)


def is_computed(target: tvm.target.Target, call: relax.Call) -> bool:
    """Return whether the library computes a convolution, if it is installed."""
    return is_convolution(call) and _layout_or_none(target, call) is not None


def _layout_or_none(target: tvm.target.Target, call: relax.Call) -> str | None:
    try:
        return layout_of(target, call)
    except Refusal:
        return None


def layout_of(target: tvm.target.Target, call: relax.Call) -> str:
    """Return the layout of a convolution for the library: ``channels_first`` or ``channels_last``.

    Raises:
        Refusal: if the library does not compute it.
    """
    attrs = call.attrs
    known = TRANSPOSED_LAYOUTS if operator_name(call) in SPATIAL else LAYOUTS
    layout = known.get((str(attrs.data_layout), str(attrs.kernel_layout)))
    if layout is None or str(attrs.out_layout) not in ("", str(attrs.data_layout)):
        raise Refusal(f"layouts {attrs.data_layout}, {attrs.kernel_layout} are none of cuDNN's")
    data, weight, out = (str(v.ty.dtype) for v in (*call.args, call))
    if data != weight or data != out or data not in MULTIPLIED:
        raise Refusal(f"a convolution of {data} and {weight} in {out} is none that cuDNN is asked for")
    check_capability(target, data)
    shapes = [shape_of(v) for v in (*call.args, call)]
    if any(shape is None for shape in shapes):
        raise Refusal("its shapes are not known")
    padding_of(call)
    return layout


def padding_of(call: relax.Call) -> list[int]:
    """Return the padding of a convolution along each spatial axis, the same on both sides.

    Raises:
        Refusal: if the sides differ.
    """
    padding = [int(p) for p in call.attrs.padding]
    spatial = len(padding) // 2
    if padding[:spatial] != padding[spatial:]:
        raise Refusal(f"padding {padding} is not the same on both sides")
    return padding[:spatial]


class _Rewriter:
    def __init__(self, owner: LibraryConvolutions, builder: relax.BlockBuilder, gradients: WeightGradients):
        self.owner, self.builder, self.gradients = owner, builder, gradients

    def replaced(self, call: relax.Call, var: relax.Var) -> relax.Expr:
        """Return the replacement of a convolution that is bound to ``var``."""
        key = call.op.name.rpartition(".")[2], var
        try:
            layout = layout_of(self.owner.target, call)
        except Refusal as refusal:
            self.owner.computed[key] = f"TVM: {refusal}"
            return call
        self.owner.computed[key] = f"{library.CUDNN.title}: {layout.replace('_', ' ')}"
        words = [layout]
        words += ["tf32"] if self.owner.config.tf32 and str(call.ty.dtype) == "float32" else []
        words += ["timed"] if all(is_static(shape_of(v) or ()) for v in (*call.args, call)) else []
        if operator_name(call) in SPATIAL:
            words.append(DATA_GRADIENT)
        elif layout == CHANNELS_FIRST:
            gradient = self.gradients.found(self.builder, call, var)
            if gradient is not None:
                self.owner.computed[key] += ", a weight's gradient"
                return self._gradient(gradient, words)
        args = self._with_channels(call) if layout == CHANNELS_LAST else list(call.args)
        workspace = self.owner.device.choices.convolution_workspace_bytes
        called = library_call(args, numbers_of(call), words, call.ty.shape, str(call.ty.dtype), workspace)
        return relax.TupleGetItem(self.builder.emit(called), 0)

    def _gradient(self, gradient: WeightGradient, words: list[str]) -> relax.Expr | None:
        """Return a weight's gradient in the convolution's own order, transposed."""
        dtype = str(gradient.data.ty.dtype)
        args, words = [gradient.data, gradient.gradient], [*words, WEIGHT_GRADIENT]
        choices = self.owner.device.choices
        workspace = choices.convolution_workspace_bytes
        if gradient.is_transformed:
            workspace = max(workspace, int(choices.transformed_times * sum(map(bytes_of, args))))
        result = library_call(args, gradient.numbers, words, gradient.shape, dtype, workspace)
        called = self.builder.emit(result)
        result = self.builder.emit(relax.TupleGetItem(called, 0))
        return relax.op.permute_dims(result, [1, 0, *range(2, len(gradient.shape))])

    def _with_channels(self, call: relax.Call) -> list[relax.Expr]:
        """Return data and weight, channels last, with at least as many channels as cuDNN needs to be fast."""
        data, weight = call.args
        channels = (shape_of(weight) or (0,))[-1]
        if str(call.ty.dtype) not in HALF or int(call.attrs.groups) > 1 or not isinstance(channels, int):
            return [data, weight]
        added = self.owner.device.choices.fewest_channels - channels
        return [data, weight] if added <= 0 else [self._widened(data, added), self._widened(weight, added)]

    def _widened(self, value: relax.Expr, added: int) -> relax.Expr:
        rank = len(shape_of(value) or ())
        if isinstance(value, tvm.ir.GenericConst):
            widened = np.pad(value.value.numpy(), [(0, 0)] * (rank - 1) + [(0, added)])
            return relax.const(widened, str(value.ty.dtype))
        return self.builder.emit(relax.op.nn.pad(value, [0] * (2 * rank - 1) + [added]))


def numbers_of(call: relax.Call) -> list[int]:
    """Return the groups, strides, paddings and dilations of a convolution."""
    attrs = call.attrs
    spatial = len(attrs.strides)
    return [int(n) for n in (attrs.groups, *attrs.strides, *list(attrs.padding)[:spatial], *attrs.dilation)]


def library_call(
    args: list[relax.Expr],
    numbers: Sequence[int],
    words: list[str],
    shape: Any,
    dtype: str,
    workspace: int,
) -> relax.Call:
    """Return the call that computes a convolution or a weight's gradient: a tuple of result and workspace.

    Args:
        args: data and weight, or data and the gradient of the result.
        numbers: the result of ``numbers_of``.
        words: the mode.
        shape, dtype: shape and dtype of the result.
        workspace: bytes of the workspace.
    """
    told = relax.ShapeExpr([tvm.tirx.IntImm("int64", n) for n in numbers])
    arguments = relax.Tuple([*args, told, tvm.ir.StringImm(" ".join(words))])
    results = [relax.TensorType(shape, dtype), relax.TensorType([workspace], "uint8")]
    return relax.call_dps_packed(library.CUDNN.function, arguments, results)
