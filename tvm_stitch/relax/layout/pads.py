# SPDX-License-Identifier: Apache-2.0
"""CarriedPads: a tensor is transposed before a border is put around it, not behind.

``ConvertLayout`` stops at ``R.nn.pad``, which stands before convolutions of quantized data: their border has the zero
point. Behind it would be a transposition that keeps the border out of the convolution's kernel, and the layout from
what makes the tensor.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...support.module_pass import module_pass
from ..rewriting.functions import with_own_functions
from ..rewriting.operators import has_operators, operator_name
from ..rewriting.views import definition, permutation, shape_of

PAD, PERMUTE = "relax.nn.pad", "relax.permute_dims"


@module_pass
class CarriedPads:
    """Rewrite ``permute_dims(nn.pad(x))`` of a constant border as ``nn.pad(permute_dims(x))``.

    Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if not (has_operators(mod, (PAD,)) and has_operators(mod, (PERMUTE,))):
            return mod
        return with_own_functions(mod, _rewritten)


def _rewritten(func: Any) -> Any:
    mutator = _Mutator(dict(relax.analysis.get_var2val(func).items()))
    made = mutator.visit_expr(func)
    return relax.analysis.remove_all_unused(made) if mutator.carried_any else func


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, values: dict[Any, Any]):
        super().__init__()
        self.values, self.carried_any = values, False

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        pad = definition(self.values, call.args[0]) if operator_name(call) == PERMUTE else None
        if (
            pad is None
            or operator_name(pad) != PAD
            or str(pad.attrs.pad_mode) != "constant"
            or not shape_of(call)
        ):
            return super().visit_call_(call)
        self.carried_any = True
        widths = [int(width) for width in pad.attrs.pad_width]
        axes = permutation(call, len(widths) // 2)
        moved = [width for axis in axes for width in widths[2 * axis : 2 * axis + 2]]
        source = self.builder_.emit(relax.op.permute_dims(self.visit_expr(pad.args[0]), axes))
        return relax.op.nn.pad(source, moved, pad_value=float(pad.attrs.pad_value))
