# SPDX-License-Identifier: Apache-2.0
"""ConvolutionLayouts: channels innermost for the convolutions that a template computes, and for what is between."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..failures import error_text, let_pass
from ..graph.extent import is_static
from ..interrupts import carrying
from .views import shape_of

LAYOUTS = {
    "relax.nn.conv1d": ("NCW", ["NWC", "OWI"]),
    "relax.nn.conv2d": ("NCHW", ["NHWC", "OHWI"]),
    "relax.nn.conv3d": ("NCDHW", ["NDHWC", "ODHWI"]),
}
"""For each operator, the layout of data that importers give it, and those of data and weight that templates take."""


@tvm.transform.module_pass(opt_level=0, name="ConvolutionLayouts")
class ConvolutionLayouts:
    """Convert float32 convolutions of constant weights and static images to channels that are innermost.

    TVM's ``ConvertLayout`` carries the layout through what lies between convolutions. ``computed``, if given, receives
    the reason where that fails; the module then stays as it is. Runs before ``LegalizeOps``.
    """

    def __init__(self, computed: dict[str, str] | None = None):
        self.computed = computed if computed is not None else {}

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Convert the module's convolutions."""
        counter = _Counter()
        for _, func in mod.functions_items():
            if isinstance(func, relax.Function):
                counter.visit_expr(func)
        if not counter.found:
            return mod
        try:
            return relax.transform.ConvertLayout({}, _wanted)(mod)
        except Exception as err:
            let_pass(err)
            self.computed["convolutions"] = f"layouts stay as they are: {error_text(err)}"
            return mod


@relax.expr_functor.visitor
class _Counter(relax.PyExprVisitor):
    found = 0

    def visit_call_(self, call: Any) -> None:  # pylint: disable=arguments-renamed
        super().visit_call_(call)
        self.found += bool(_converts(call))


def _wanted(call: Any) -> dict[str, list[str]]:
    """What ``ConvertLayout`` asks of a call."""
    name = getattr(call.op, "name", "")
    if name not in LAYOUTS:
        return {}
    if _converts(call):
        return {name: LAYOUTS[name][1]}
    return {name: [call.attrs.data_layout, call.attrs.kernel_layout]}


def _converts(call: Any) -> bool:
    name = getattr(call.op, "name", "")
    if name not in LAYOUTS or call.attrs.data_layout != LAYOUTS[name][0]:
        return False
    data, weight = call.args
    if not isinstance(weight, tvm.ir.GenericConst) or not isinstance(call.ty, relax.TensorType):
        return False
    if any(str(ty.dtype) != "float32" for ty in (data.ty, weight.ty, call.ty)):
        return False
    shapes = [shape_of(data), shape_of(call)]
    return all(shape is not None and is_static(shape[1:]) for shape in shapes)
