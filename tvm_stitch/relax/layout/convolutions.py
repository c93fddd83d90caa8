# SPDX-License-Identifier: Apache-2.0
"""ConvolutionLayouts: put channels innermost for convolutions that are faster so, and for the operators between them.

TVM's ``ConvertLayout`` propagates channels innermost through the operators between convolutions. Transpositions
remain only at the ends of a chain: the first in a template's copy, the last in its write-back. ``ConvertLayout``
stops at operands of fewer axes, which therefore first get axes of extent 1 (``full_rank_operands``). It is wrong for
some operators, which are hidden from it (``convert_layout``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from functools import partial
from typing import Any

import tvm
from tvm import relax

from ...graph.dtype import HALF
from ...graph.extent import is_number
from ...repairs.legalize.convert_layout import converted_where_propagated
from ...support.failures import error_text, reraise_fatal
from ...support.module_pass import module_pass
from ..legalize.input_dilation import LAYOUTS as SPREAD_LAYOUTS
from ..legalize.transposed_convolutions import SPATIAL
from ..rewriting.compute_pass import ChoosingPass
from ..rewriting.contents import contents_of
from ..rewriting.functions import own_functions
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, only_reader, readers_of
from ..rewriting.views import permutation, shape_of
from .full_rank import full_rank_operands
from .quantization import converted_with_quantization, is_elementwise

LAYOUTS = {
    "relax.nn.conv1d": ("NCW", ["NWC", "OWI"]),
    "relax.nn.conv2d": ("NCHW", ["NHWC", "OHWI"]),
    "relax.nn.conv3d": ("NCDHW", ["NDHWC", "ODHWI"]),
    **{name: (f"NC{axes}", list(SPREAD_LAYOUTS[name])) for name, axes in SPATIAL.items()},
}
"""For each operator: the data layout of importers, and the layouts of data and weight with channels innermost."""

Converts = Callable[[Any, bool], bool]
"""Decides whether to convert a convolution. The flag says if its result is read channels last."""


@module_pass
class ConvolutionLayouts(ChoosingPass):
    """Put channels innermost for the convolutions that ``converts`` accepts.

    TVM's ``ConvertLayout`` propagates the layout through the operators between convolutions, where it does so
    correctly. If that fails, the module stays as it is, and its decisions record the reason. Runs before
    ``LegalizeOps``.

    Args:
        converts: decides whether to convert a convolution.
        constant: whether convolutions of other weights than constants stay. The layout of such weights stays anyway.
    """

    def __init__(self, converts: Converts, constant: bool = True):
        self.converts, self.constant = converts, constant

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Convert the module's convolutions."""
        calls = (call for _, func in own_functions(mod) for call in self._chosen(func))
        chosen = {(operator_name(call), call.args[1]) for call in calls}
        if not chosen:
            return mod
        try:
            convert = relax.transform.ConvertLayout({}, partial(_wanted, chosen))
            return converted_with_quantization(
                full_rank_operands(mod), lambda each: converted_where_propagated(each, convert)
            )
        except Exception as err:
            reraise_fatal(err)
            self.computed["convolutions"] = f"layouts stay as they are: {error_text(err)}"
            return mod

    def _chosen(self, func: relax.Function) -> Iterator[Any]:
        if contents_of(func).keys().isdisjoint(LAYOUTS):
            return
        readers = readers_of(func)
        for var, call in relax.analysis.get_var2val(func).items():
            if not _is_of_importers(call) or not (_has_constant_weight(call) or self._takes_other(call)):
                continue
            if self.converts(call, _is_read_channels_last(var, readers)):
                yield call

    def _takes_other(self, call: relax.Call) -> bool:
        """Return whether a convolution may have a weight that is no constant. That of a transposed one may not."""
        return not self.constant and operator_name(call) not in SPATIAL


def _is_read_channels_last(var: relax.Var, readers: Readers) -> bool:
    """Return whether a transposition to channels last, behind element-wise operators, is the only reader."""
    rank = len(shape_of(var) or ())
    reader = only_reader(readers, var)
    if reader is None:
        return False
    call = reader.value
    if operator_name(call) == "relax.permute_dims":
        return permutation(call, rank) == [0, *range(2, rank), 1]
    return is_elementwise(call) and _is_read_channels_last(reader.var, readers)


def _wanted(chosen: Set[tuple[str | None, relax.Expr]], call: relax.Call) -> dict[str, list[str]]:
    """Return the layouts that ``ConvertLayout`` requests for a call.

    ``chosen`` has operators and weights. A convolution and its gradient, a transposed one, have the same weight.
    """
    name = operator_name(call)
    if name not in LAYOUTS:
        return {}
    if _is_of_importers(call) and (name, call.args[1]) in chosen:
        data, weight = LAYOUTS[name][1]
        return {name: [data, weight if _has_constant_weight(call) else call.attrs.kernel_layout]}
    return {name: [call.attrs.data_layout, call.attrs.kernel_layout]}


def _is_of_importers(call: relax.Expr) -> bool:
    """Return whether a call is a convolution in the layout that importers use."""
    name = operator_name(call)
    if name not in LAYOUTS or call.attrs.data_layout != LAYOUTS[name][0]:
        return False
    return isinstance(call.ty, relax.TensorType)


def _has_constant_weight(call: relax.Call) -> bool:
    return isinstance(call.args[1], tvm.ir.GenericConst)


def suits_library(tf32: bool, call: relax.Call, read_last: bool) -> bool:
    """Return whether cuDNN computes a convolution faster with channels last.

    A GPU's matrix units compute half types, and float32 that may be rounded, faster so. Exact float32 is mostly
    slower. Depthwise convolutions of exact float32 are not slower, and converting them pays if no transposition is
    added. Transposed convolutions stay.
    """
    if operator_name(call) in SPATIAL:
        return False
    if str(call.ty.dtype) in HALF or (tf32 and str(call.ty.dtype) == "float32"):
        return True
    return read_last and int(call.attrs.groups) > 1 and is_number((shape_of(call.args[1]) or (0, 0))[1], 1)
