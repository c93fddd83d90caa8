# SPDX-License-Identifier: Apache-2.0
"""ComputeTemplates: matrix products and convolutions of a CPU by our templates, weights packed at compile time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...compute.anchored import Anchored, anchored
from ...compute.contraction import Contraction
from ...compute.convolution import Convolution
from ...compute.cpu.emit import emit_anchored
from ...compute.cpu.packing import layout, packed, packed_shape
from ...compute.cpu.tiles import Tiles
from ...compute.templates import tiles_of, told
from ...config import ASKED, StitchConfig
from ...device import device_model
from ...graph.reader import read
from ...repairs.lowering import lowered
from ...repairs.prim_funcs import is_scheduled
from ...support.failures import Refusal, error_text, reraise_fatal
from ...support.module_pass import module_pass
from ..rewriting.compute_pass import ComputePass
from .dataflow import is_call_tir
from .lift_workspace import LiftWorkspace

CONTRACTIONS = ("matmul", "conv", "dense")
"""What is in the names of functions that hold a contraction, read or not."""


@module_pass
class ComputeTemplates(ComputePass):
    """Replace PrimFuncs of one matrix product or convolution, and what TVM fused to it, by kernels for a CPU.

    A weight that is a constant is packed: its calls get the constant in panels. The module's decisions receive for
    each function of one what computes it, and why. A kernel that TVM's lowering fails on is none; with ``check=False``
    that is not tried.
    """

    def __init__(
        self,
        target: Any,
        config: StitchConfig | None = None,
        check: bool = True,
    ):
        super().__init__(target, config)
        self.check = check

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the products and their calls."""
        products = {}
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and not is_scheduled(func):
                found = self._product(gvar.name_hint, func)
                if found is not None:
                    products[gvar] = found
        if not products:
            return mod
        rewriter = _Rewriter(mod, products, self)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                rewriter.builder_.update_func(gvar, rewriter.visit_expr(func))
        passes = [relax.transform.DeadCodeElimination(), LiftWorkspace()]
        return tvm.transform.Sequential(passes)(rewriter.builder_.get())

    def _product(self, name: str, func: Any) -> Anchored | None:
        contracts = any(word in name for word in CONTRACTIONS)
        try:
            graph = read(func, name)
            contracts = any(op.contraction for op in graph.operators)
            if not contracts:
                return None
            found = anchored(graph)
            if not found.is_served:
                raise Refusal("only float32, half types, and bytes added up in int32 have a template")
            if found.kind in self.config.of_tvm:
                raise Refusal(ASKED)
            return found
        except Exception as err:
            reraise_fatal(err)
            if contracts:
                # A layout that was left as it is, since TVM is asked for, is not the reason.
                kind = "convolution" if "conv" in name else "matmul"
                self.computed[name] = f"TVM: {ASKED if kind in self.config.of_tvm else error_text(err)}"
            return None


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, products: dict[Any, Anchored], owner: ComputeTemplates):
        super().__init__(mod)
        self.mod, self.products, self.owner = mod, products, owner
        self.tiles = {gvar: tiles_of(owner.target, found.product) for gvar, found in products.items()}
        self.kernels: dict[tuple[Any, bool], Any] = {}
        self.weights: dict[tuple[Any, Hashable, int, int], Any] = {}

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        if not is_call_tir(call) or call.args[0] not in self.products:
            return call
        gvar = call.args[0]
        found = self.products[gvar]
        product = found.product
        args = list(call.args[1].fields)
        position = [p.same_as(found.weight.buffer) for p in self.mod[gvar].params].index(True)
        weight = args[position]
        packs = isinstance(weight, tvm.ir.GenericConst) and found.takes_packed
        kernel = self._kernel(gvar, packs)
        if kernel is None:
            return call
        if packs:
            try:
                args[position] = self._packed(weight, product, self.tiles[gvar])
            except Exception as err:
                reraise_fatal(err)
                self.owner.computed[gvar.name_hint] = f"TVM: {error_text(err)}"
                return call
        return relax.Call(call.op, [kernel, relax.Tuple(args), *call.args[2:]], call.attrs, call.ty_args)

    def _packed(self, weight: Any, product: Contraction | Convolution, tiles: Tiles) -> Any:
        """A constant in panels: one for all products that share it."""
        key = weight.value, layout(product), tiles.columns, tiles.group
        if key not in self.weights:
            made = packed(product, weight.value.numpy(), tiles.columns, tiles.group)
            dtype = tiles.packed_dtype(str(weight.ty.dtype))
            self.weights[key] = relax.const(made if str(made.dtype) == dtype else made.astype(dtype))
        return self.weights[key]

    def _kernel(self, gvar: Any, packs: bool) -> Any:
        if (gvar, packs) not in self.kernels:
            self.kernels[gvar, packs] = self._made(gvar, packs)
        return self.kernels[gvar, packs]

    def _made(self, gvar: Any, packs: bool) -> Any:
        func, name, owner = self.mod[gvar], gvar.name_hint, self.owner
        found, buffer = self.products[gvar], None
        tiles = self.tiles[gvar]
        try:
            if packs:
                shape = packed_shape(found.product, tiles.columns, tiles.group)
                dtype = tiles.packed_dtype(found.weight.dtype)
                buffer = tirx.decl_buffer(shape, dtype, f"{found.weight.name}_packed")
            elif isinstance(found.product, Convolution):
                raise Refusal("the weight of the convolution is no constant: bind it to the module")
            device = device_model(owner.target, owner.config)
            made = emit_anchored(func, found, tiles, buffer, device, owner.config)
            if owner.check:
                lowered(made, owner.target)
        except Exception as err:
            reraise_fatal(err)
            owner.computed[name] = f"TVM: {error_text(err)}"
            return None
        owner.computed[name] = told(tiles, packs)
        return self.builder_.add_func(made.without_attr("global_symbol"), f"{name}_tiled")
