# SPDX-License-Identifier: Apache-2.0
"""FourierTransforms: compute a Fourier transform by one kernel on CPUs, and by matmuls elsewhere.

Complex numbers that a model holds as pairs are read and written as pairs. Their real and imaginary parts would be
divided and joined by kernels of their own.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from ... import compat
from ...compute.cpu.tiles import lanes_of
from ...compute.fourier.cpu_kernel import Layout, fourier_kernel, twiddles
from ...compute.fourier.transform import Transform, radices_of
from ...support.module_pass import module_pass
from ..rewriting.compute_pass import ComputePass
from ..rewriting.rules import CALL, Match, Rule, apply_rules
from .pairs import Definition, is_joined_alone, joined, pairs_of, parts_of_pairs
from .transform import ATTRIBUTE, with_real_ends, written_out


@module_pass
class FourierTransforms(ComputePass):
    """Replace calls of functions of Fourier transforms.

    A CPU gets one kernel for a transform. Other transforms become matmuls in place of their calls.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        transforms = {
            gvar: Transform.from_text(str(func.attrs[ATTRIBUTE]))
            for gvar, func in mod.functions_items()
            if isinstance(func, relax.Function) and func.attrs and ATTRIBUTE in func.attrs
        }
        if not transforms:
            return mod
        by = _Transforms(transforms, self)
        rules = [
            Rule("the parts of pairs are joined to the same pairs", by.join, ("relax.concat", "relax.stack"),
                 leaves_unused=True),
            Rule("a row stays in the cache for all stages", by.call, (CALL,), leaves_unused=True),
        ]  # fmt: skip
        return relax.transform.DeadCodeElimination()(apply_rules(mod, rules))


class _Transforms:
    def __init__(self, transforms: dict[tvm.ir.GlobalVar, Transform], owner: FourierTransforms):
        self.transforms, self.owner = transforms, owner
        self.lanes = lanes_of(owner.target) if owner.target.kind.name == "llvm" else 0
        self.made: dict[Any, Any] = {}  # tensors of pairs, and the rows that kernels have written them as

    def join(self, match: Match) -> relax.Expr | None:
        """Return a kernel's pairs in place of a call that joins their parts."""
        parts = joined(match.value) if self.made else None
        pairs = None if parts is None else pairs_of(_definitions(match), *parts)
        return R.reshape(self.made[pairs], match.value.ty.shape) if pairs in self.made else None

    def call(self, match: Match) -> relax.Expr | None:
        """Return the replacement of a call of a transform's function."""
        call = match.value
        transform = self.transforms.get(call.op) if isinstance(call.op, tvm.ir.GlobalVar) else None
        if transform is None:
            return None
        dtype, note = str(call.args[0].ty.dtype.dtype), ("fourier transform", match.var)
        lanes = self.lanes if dtype == "float32" else self.lanes // 2
        known = dtype in ("float32", "float64") and lanes > 1
        if known and transform.suits_kernel(lanes):
            radices = " x ".join(map(str, radices_of(transform.complex_length, lanes)))
            self.owner.computed[note] = f"our kernel: {transform.length} numbers, radices {radices}"
            return relax.Tuple(self.kernel(match, transform, list(call.args), lanes))
        whole = Transform("complex", transform.length, transform.sign, transform.scale)
        if known and transform.kind == "half" and whole.suits_kernel(lanes):
            self.owner.computed[note] = f"our kernel of {transform.length} complex numbers"
            x = call.args[0]
            result = self.kernel(match, whole, [x, match.emit(R.zeros_like(x))], lanes)
            half = [match.emit(R.strided_slice(each, [1], [0], [transform.half])) for each in result]
            return relax.Tuple(with_real_ends(match.builder, (half[0], half[1]), transform.length))
        self.owner.computed[note] = "matmuls: a factor is a matmul"
        return relax.Tuple(written_out(match.builder, transform, list(call.args)))

    def kernel(self, match: Match, transform: Transform, operands: list[Any], lanes: int) -> list[Any]:
        """Emit the call of a kernel, and return the transform's results."""
        emit, choices = match.emit, self.owner.device.choices
        rows, dtype = operands[0].ty.shape[0], str(operands[0].ty.dtype.dtype)
        pairs = pairs_of(_definitions(match), *operands) if len(operands) == 2 else None
        if pairs is not None:
            operands = [emit(R.reshape(pairs, [rows, 2 * operands[0].ty.shape[1]]))]
        own_results = transform == self.transforms[match.value.op]  # which no slice follows
        to_pairs = (
            own_results
            and transform.kind != "real"
            and is_joined_alone(match.readers, match.values, match.var)
        )
        count = {"complex": transform.length, "half": transform.half, "real": transform.length}[
            transform.kind
        ]
        own = tirx.Var("rows", "int64") if compat.int_value(rows) is None else compat.int_value(rows)
        layout = Layout(pairs is not None, to_pairs)
        func = fourier_kernel(transform, layout, own, dtype, lanes, choices.fourier_serial_numbers)
        kernel = match.builder.add_func(
            func.without_attr("global_symbol"), f"fourier_{transform.kind}_kernel"
        )
        args = [*operands, relax.const(twiddles(transform, lanes).astype(dtype), dtype)]
        if to_pairs:
            called = emit(
                relax.call_tir(kernel, relax.Tuple(args), relax.TensorType([rows, 2 * count], dtype))
            )
            both = emit(R.reshape(called, [rows, count, 2]))
            self.made[both] = called
            return parts_of_pairs(emit, both)
        result = relax.TensorType([rows, count], dtype)
        if transform.kind == "real":
            return [emit(relax.call_tir(kernel, relax.Tuple(args), result))]
        done = emit(relax.call_tir(kernel, relax.Tuple(args), [result, result]))
        return [emit(relax.TupleGetItem(done, part)) for part in (0, 1)]


def _definitions(match: Match) -> Definition:
    """Return a function from a variable of the function after to the call that it is bound to, through tuples."""

    def definition(value: Any) -> relax.Call | None:
        bound = match.builder.lookup_binding(value) if isinstance(value, relax.Var) else None
        if isinstance(bound, relax.TupleGetItem):
            items = match.builder.lookup_binding(bound.tuple_value)
            return definition(items.fields[bound.index]) if isinstance(items, relax.Tuple) else None
        return match.definition(value)

    return definition
