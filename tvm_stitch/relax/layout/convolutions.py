# SPDX-License-Identifier: Apache-2.0
"""ConvolutionLayouts: channels innermost for convolutions that are faster so, and for what is between.

TVM's ``ConvertLayout`` carries channels innermost through what is between convolutions, so that transpositions remain
at the ends of a chain: the first one in a template's copy, the last one in its write-back. It stops at operands of
fewer axes, which therefore get axes of extent 1 first (``full_rank_operands``), and is wrong for some operators,
which are hidden from it (``convert_layout``).
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
from ..rewriting.functions import own_functions
from ..rewriting.operators import operator_name
from ..rewriting.readers import only_reader, readers_of
from ..rewriting.views import permutation, shape_of
from .full_rank import full_rank_operands
from .quantization import converted_with_quantization, is_elementwise

LAYOUTS = {
    "relax.nn.conv1d": ("NCW", ["NWC", "OWI"]),
    "relax.nn.conv2d": ("NCHW", ["NHWC", "OHWI"]),
    "relax.nn.conv3d": ("NCDHW", ["NDHWC", "ODHWI"]),
    **{name: (f"NC{axes}", list(SPREAD_LAYOUTS[name])) for name, axes in SPATIAL.items()},
}
"""For each operator, the layout that importers give data, and those of data and weight with channels innermost."""

Converts = Callable[[Any, bool], bool]
"""Whether a convolution of constant weights is to be converted, given that its result is read with channels last."""


@module_pass
class ConvolutionLayouts(ChoosingPass):
    """Convert those convolutions of constant weights that ``converts`` to channels that are innermost.

    TVM's ``ConvertLayout`` carries the layout through what lies between convolutions, where it does so rightly.
    Where that fails the module stays as it is, and its decisions have the reason. Runs before
    ``LegalizeOps``.
    """

    def __init__(self, converts: Converts):
        self.converts = converts

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Convert the module's convolutions."""
        chosen = {call.args[1] for _, func in own_functions(mod) for call in self._chosen(func)}
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

    def _chosen(self, func: Any) -> Iterator[Any]:
        readers = readers_of(func)
        for var, call in relax.analysis.get_var2val(func).items():
            if _has_constant_weight(call) and self.converts(call, _is_read_channels_last(var, readers)):
                yield call


def _is_read_channels_last(var: Any, readers: dict[Any, list[Any]]) -> bool:
    """Whether all that reads a convolution's result, behind element-wise operators, is one such transposition."""
    rank = len(shape_of(var) or ())
    found = only_reader(readers, var)
    if found is None:
        return False
    call = found.value
    if operator_name(call) == "relax.permute_dims":
        return permutation(call, rank) == [0, *range(2, rank), 1]
    return is_elementwise(call) and _is_read_channels_last(found.var, readers)


def _wanted(chosen: Set[Any], call: Any) -> dict[str, list[str]]:
    """What ``ConvertLayout`` asks of a call; ``chosen`` are the weights of the convolutions to convert."""
    name = operator_name(call)
    if name not in LAYOUTS:
        return {}
    if _has_constant_weight(call) and call.args[1] in chosen:
        return {name: LAYOUTS[name][1]}
    return {name: [call.attrs.data_layout, call.attrs.kernel_layout]}


def _has_constant_weight(call: Any) -> bool:
    """Whether a call is a convolution in the layout that importers give it, of a constant weight."""
    name = operator_name(call)
    if name not in LAYOUTS or call.attrs.data_layout != LAYOUTS[name][0]:
        return False
    return isinstance(call.args[1], tvm.ir.GenericConst) and isinstance(call.ty, relax.TensorType)


def suits_library(tf32: bool, call: Any, read_last: bool) -> bool:
    """Whether cuDNN is faster at a convolution with channels last.

    That is what a GPU's matrix units compute: half types, and float32 that may be rounded. Exact float32 is mostly
    slower so, but not depthwise, which is worth it where no transposition is added. Transposed convolutions stay.
    """
    if operator_name(call) in SPATIAL:
        return False
    if str(call.ty.dtype) in HALF or (tf32 and str(call.ty.dtype) == "float32"):
        return True
    return read_last and int(call.attrs.groups) > 1 and is_number((shape_of(call.args[1]) or (0, 0))[1], 1)
