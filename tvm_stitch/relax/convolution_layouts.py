# SPDX-License-Identifier: Apache-2.0
"""ConvolutionLayouts: channels innermost for convolutions that are faster so, and for what is between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tvm
from tvm import relax

from ..failures import error_text, let_pass
from ..graph.dtype import HALF, MULTIPLIED
from ..graph.extent import is_static
from ..interrupts import carrying
from .carried_layouts import converted_where_carried
from .full_rank_operands import full_rank_operands
from .operators import operator_name
from .views import shape_of

LAYOUTS = {
    "relax.nn.conv1d": ("NCW", ["NWC", "OWI"]),
    "relax.nn.conv2d": ("NCHW", ["NHWC", "OHWI"]),
    "relax.nn.conv3d": ("NCDHW", ["NDHWC", "ODHWI"]),
}
"""For each operator, the layout that importers give data, and those of data and weight with channels innermost."""

Converts = Callable[[Any], bool]
"""Whether a convolution of constant weights is to be converted."""


@tvm.transform.module_pass(opt_level=0, name="ConvolutionLayouts")
class ConvolutionLayouts:
    """Convert those convolutions of constant weights that ``converts`` to channels that are innermost.

    TVM's ``ConvertLayout`` carries the layout through what lies between convolutions, where it does so rightly.
    ``computed``, if given, receives the reason where that fails; the module then stays as it is. Runs before
    ``LegalizeOps``.
    """

    def __init__(self, converts: Converts, computed: dict[str, str] | None = None):
        self.converts = converts
        self.computed = computed if computed is not None else {}

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Convert the module's convolutions."""
        counter = _Counter(self.converts)
        for _, func in mod.functions_items():
            if isinstance(func, relax.Function):
                counter.visit_expr(func)
        if not counter.found:
            return mod
        try:
            convert = relax.transform.ConvertLayout({}, partial(_wanted, self.converts))
            return converted_where_carried(full_rank_operands(mod), convert)
        except Exception as err:
            let_pass(err)
            self.computed["convolutions"] = f"layouts stay as they are: {error_text(err)}"
            return mod


@relax.expr_functor.visitor
class _Counter(relax.PyExprVisitor):
    def __init__(self, converts: Converts):
        super().__init__()
        self.converts, self.found = converts, 0

    def visit_call_(self, call: Any) -> None:  # pylint: disable=arguments-renamed
        super().visit_call_(call)
        self.found += _has_constant_weight(call) and self.converts(call)


def _wanted(converts: Converts, call: Any) -> dict[str, list[str]]:
    """What ``ConvertLayout`` asks of a call."""
    name = operator_name(call)
    if name not in LAYOUTS:
        return {}
    if _has_constant_weight(call) and converts(call):
        return {name: LAYOUTS[name][1]}
    return {name: [call.attrs.data_layout, call.attrs.kernel_layout]}


def _has_constant_weight(call: Any) -> bool:
    """Whether a call is a convolution in the layout that importers give it, of a constant weight."""
    name = operator_name(call)
    if name not in LAYOUTS or call.attrs.data_layout != LAYOUTS[name][0]:
        return False
    return isinstance(call.args[1], tvm.ir.GenericConst) and isinstance(call.ty, relax.TensorType)


def suits_templates(call: Any) -> bool:
    """Whether a template may compute a convolution: of float32 or half types, and static images."""
    data, weight = call.args
    if any(str(ty.dtype) not in MULTIPLIED for ty in (data.ty, weight.ty, call.ty)):
        return False
    shapes = [shape_of(data), shape_of(call)]
    return all(shape is not None and is_static(shape[1:]) for shape in shapes)


def suits_tensor_cores(tf32: bool, call: Any) -> bool:
    """Whether a GPU's matrix units compute a convolution: half types, and float32 that may be rounded."""
    return str(call.ty.dtype) in HALF or (tf32 and str(call.ty.dtype) == "float32")
