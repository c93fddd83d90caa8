# SPDX-License-Identifier: Apache-2.0
"""WholeProducts: products whose sums no scope took are computed as they were."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from ... import compat
from ...support.module_pass import module_pass
from ..rewriting.rules import Match, Rule, apply_rules
from ..stitch.dataflow import SUMS_ATTR
from .product_sums import transposed
from .saving import loaded


@module_pass
class WholeProducts:
    """Call a product's own function again where its sums are left. TVM's schedules serve the product, not the sums."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Replace the calls of sums."""
        held = {
            gvar: loaded(func.attrs[SUMS_ATTR])
            for gvar, func in mod.functions_items()
            if isinstance(func, tvm.tirx.PrimFunc) and func.attrs and SUMS_ATTR in func.attrs
        }
        if not held:
            return mod
        functions: dict[tvm.tirx.PrimFunc, tvm.ir.GlobalVar] = {}

        def called(
            match: Match, func: tvm.tirx.PrimFunc, args: list[relax.Expr], ty: relax.Type
        ) -> relax.Call:
            if func not in functions:
                functions[func] = match.builder.add_func(
                    func, str(match.before.args[0].name_hint).removesuffix("_sums")
                )
            return relax.call_tir(functions[func], relax.Tuple(args), ty)

        def whole(match: Match) -> relax.Expr | None:
            if match.before.args[0] not in held:
                return None
            product, weight, *turning = held[match.before.args[0]]
            args = list(match.value.args[1].fields)
            if turning and not isinstance(
                turning[0], tvm.tirx.PrimFunc
            ):  # a constant, stored in another order
                weight, order = int(weight), [int(axis) for axis in turning[0]]
                args[weight] = transposed(args[weight], np.argsort(order).tolist())
            elif turning:
                weight = int(weight)
                _, turned = compat.prim_func_params(product)[weight]
                assert turned is not None
                ty = relax.TensorType(turned.shape, args[weight].ty.dtype)
                args[weight] = match.emit(called(match, turning[0], [args[weight]], ty))
            return called(match, product, args, match.before.ty)

        return apply_rules(mod, [Rule("no scope took the sums", whole, ("relax.call_tir",))])
