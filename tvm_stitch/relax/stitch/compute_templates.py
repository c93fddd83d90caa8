# SPDX-License-Identifier: Apache-2.0
"""ComputeTemplates: compute matmuls and convolutions on a CPU with template kernels, with weights packed beforehand."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import tvm
from tvm import relax, tirx

from ...compute.anchored import Anchored, anchored
from ...compute.contraction import Contraction
from ...compute.convolution import Convolution
from ...compute.cpu.emit import emit_anchored
from ...compute.cpu.packing import layout, packed, packed_shape
from ...compute.cpu.packing_kernel import emit_packing
from ...compute.cpu.tiles import Tiles
from ...compute.templates import template_note, tiles_of
from ...config import ASKED, StitchConfig
from ...device import device_model
from ...graph.reader import read
from ...repairs.lowering import lowered
from ...repairs.prim_funcs import is_scheduled
from ...support.failures import Refusal, error_text, reraise_fatal
from ...support.module_pass import module_pass
from ..rewriting.compute_pass import ComputePass
from ..rewriting.rules import Match, Rule, apply_rules
from .lift_workspace import LiftWorkspace

CONTRACTIONS = ("matmul", "conv", "dense")
"""Words in the names of functions that contain a contraction, whether the function can be read or not."""


@module_pass
class ComputeTemplates(ComputePass):
    """Replace PrimFuncs of one matmul or convolution, and the operators that TVM fused to it, by kernels for a CPU.

    A constant weight is packed: its calls get the constant in panels. With the option
    ``packed_arguments``, a kernel packs other weights of convolutions in each call. So a change of a parameter is
    always seen. The module's decisions receive, for each
    function with a contraction, its implementation and the reason. A kernel that TVM's lowering fails on is not used.
    With ``check=False``, kernels are not lowered as a test.
    """

    def __init__(
        self,
        target: tvm.target.Target,
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
                product = self._product(gvar.name_hint, func)
                if product is not None:
                    products[gvar] = product
        if not products:
            return mod
        kernels = _Kernels(mod, products, self)
        rewritten_module = apply_rules(mod, [Rule("a template is faster", kernels.call, ("relax.call_tir",))])
        return tvm.transform.Sequential([relax.transform.DeadCodeElimination(), LiftWorkspace()])(
            rewritten_module
        )

    def _product(self, name: str, func: tirx.PrimFunc) -> Anchored | None:
        contracts = any(word in name for word in CONTRACTIONS)
        try:
            graph = read(func, name)
            contracts = any(op.contraction for op in graph.operators)
            if not contracts:
                return None
            product = anchored(graph)
            if not product.is_served:
                raise Refusal("only float32, half types, and bytes added up in int32 have a template")
            if product.kind in self.config.of_tvm:
                raise Refusal(ASKED)
            return product
        except Exception as err:
            reraise_fatal(err)
            if contracts:
                # If the user asked for TVM, that is the reason, and not a layout that was left for it.
                kind = "convolution" if "conv" in name else "matmul"
                self.computed[name] = f"TVM: {ASKED if kind in self.config.of_tvm else error_text(err)}"
            return None


class _Kernels:
    def __init__(
        self, mod: tvm.IRModule, products: dict[tvm.ir.GlobalVar, Anchored], owner: ComputeTemplates
    ):
        self.mod, self.products, self.owner = mod, products, owner
        self.device = device_model(owner.target, owner.config)
        self.tiles: dict[tuple[tvm.ir.GlobalVar, bool], Tiles] = {}
        self.kernels: dict[tuple[tvm.ir.GlobalVar, bool, bool], tvm.ir.GlobalVar | None] = {}
        self.weights: dict[tuple[Any, Hashable, int, int, int], tvm.ir.GenericConst] = {}

    def call(self, match: Match) -> relax.Expr | None:
        """Return the call of a kernel that replaces a call of a product."""
        call = match.value
        if call.args[0] not in self.products:
            return None
        gvar = call.args[0]
        anchor = self.products[gvar]
        product = anchor.product
        args = list(call.args[1].fields)
        position = [p.same_as(anchor.weight.buffer) for p in self.mod[gvar].params].index(True)
        weight = args[position]
        is_constant = isinstance(weight, tvm.ir.GenericConst)
        in_calls = isinstance(product, Convolution) and self.owner.config.packed_arguments
        packs = anchor.takes_packed and (is_constant or in_calls)
        tiles = self._tiles(gvar, packs and is_constant)
        kernel = self._kernel(match.builder, gvar, packs, tiles)
        if kernel is None:
            return None
        if packs:
            try:
                if isinstance(product, Convolution) and not is_constant:
                    args[position] = self._packed_in_call(match, gvar.name_hint, weight, product, tiles)
                else:
                    args[position] = self._packed(weight, product, tiles)
            except Exception as err:
                reraise_fatal(err)
                self.owner.computed[gvar.name_hint] = f"TVM: {error_text(err)}"
                return None
        return relax.Call(call.op, [kernel, relax.Tuple(args), *call.args[2:]], call.attrs, call.ty_args)

    def _tiles(self, gvar: tvm.ir.GlobalVar, packs: bool) -> Tiles:
        """Return the tiles of a product, whose weight is a packed constant or lies as it is."""
        if (gvar, packs) not in self.tiles:
            product = self.products[gvar].product
            self.tiles[gvar, packs] = tiles_of(self.owner.target, self.device.choices, product, packs)
        return self.tiles[gvar, packs]

    def _packed(self, weight: Any, product: Contraction | Convolution, tiles: Tiles) -> Any:
        """Return a constant in panels. All products that share the constant share the result."""
        key = weight.value, layout(product), tiles.columns, tiles.group, tiles.at_once
        if key not in self.weights:
            panels = packed(product, weight.value.numpy(), tiles.columns, tiles.group, tiles.at_once)
            dtype = tiles.packed_dtype(str(weight.ty.dtype))
            self.weights[key] = relax.const(panels if str(panels.dtype) == dtype else panels.astype(dtype))
        return self.weights[key]

    def _packed_in_call(
        self, match: Match, name: str, weight: Any, product: Convolution, tiles: Tiles
    ) -> relax.Var:
        """Return a convolution's weight in panels, made by a kernel. All readers of a block share the result."""
        if not isinstance(weight, relax.Var):
            raise Refusal("the weight of the convolution is no variable")
        key = layout(product), tiles.columns
        panels: dict[Hashable, relax.Var] = match.notes.setdefault(weight, {})
        if key not in panels:
            func = emit_packing(product, tiles, self.device.choices)
            kernel = match.builder.add_func(func, "packed_weight")
            out = relax.TensorType(packed_shape(product, tiles.columns), str(weight.ty.dtype))
            panels[key] = match.emit(relax.call_tir(kernel, [weight], out), "packed")
        self.owner.computed[name] = f"{template_note(tiles, True)} in each call"
        return panels[key]

    def _kernel(
        self, builder: relax.BlockBuilder, gvar: tvm.ir.GlobalVar, packs: bool, tiles: Tiles
    ) -> tvm.ir.GlobalVar | None:
        key = gvar, packs, tiles.instruction is None
        if key not in self.kernels:
            function = self._made(gvar, packs, tiles)
            name = f"{gvar.name_hint}_tiled"
            self.kernels[key] = None if function is None else builder.add_func(function, name)
        return self.kernels[key]

    def _made(self, gvar: tvm.ir.GlobalVar, packs: bool, tiles: Tiles) -> tirx.PrimFunc | None:
        func, name, owner = self.mod[gvar], gvar.name_hint, self.owner
        product, buffer = self.products[gvar], None
        try:
            if packs:
                shape = packed_shape(product.product, tiles.columns, tiles.group, tiles.at_once)
                dtype = tiles.packed_dtype(product.weight.dtype)
                buffer = tirx.decl_buffer(shape, dtype, f"{product.weight.name}_packed")
            elif isinstance(product.product, Convolution):
                if product.takes_packed:
                    raise Refusal("the weight of the convolution is not a constant: bind it to the module")
                raise Refusal("the operators behind the convolution read its weight too")
            emitted = emit_anchored(func, product, tiles, buffer, self.device, owner.config)
            if owner.check:
                lowered(emitted, owner.target)
        except Exception as err:
            reraise_fatal(err)
            owner.computed[name] = f"TVM: {error_text(err)}"
            return None
        owner.computed[name] = template_note(tiles, packs)
        return emitted.without_attr("global_symbol")
