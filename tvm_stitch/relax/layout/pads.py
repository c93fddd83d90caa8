# SPDX-License-Identifier: Apache-2.0
"""SinkPads: transpose a tensor before a border is put around it, not behind.

``ConvertLayout`` stops at ``R.nn.pad``. Quantized models have one before convolutions, because the border holds the
zero point. With a transposition behind it, the convolution's kernel cannot compute the border. The layout also does
not reach the operator that computes the tensor.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from ...support.module_pass import module_pass
from ..rewriting.movement import PAD, PERMUTE
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import permutation, shape_of

_DATA = wildcard()
_PADDED = is_op(PAD)(_DATA)


@module_pass
class SinkPads:
    """Rewrite ``permute_dims(nn.pad(x))`` of a constant border as ``nn.pad(permute_dims(x))``.

    Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return apply_rules(mod, [RULE])


def _padded_last(match: Match) -> relax.Expr | None:
    attrs = match.found[_PADDED].attrs
    if str(attrs.pad_mode) != "constant" or not shape_of(match.before):
        return None
    widths = [int(width) for width in attrs.pad_width]
    axes = permutation(match.before, len(widths) // 2)
    moved = [width for axis in axes for width in widths[2 * axis : 2 * axis + 2]]
    source = match.emit(relax.op.permute_dims(match.now(match.found[_DATA]), axes))
    return relax.op.nn.pad(source, moved, pad_value=float(attrs.pad_value))


RULE = Rule(
    "a layout goes on before a border",
    _padded_last,
    (PERMUTE,),
    pattern=is_op(PERMUTE)(_PADDED),
    needs=[(PAD,)],
    leaves_unused=True,
)
