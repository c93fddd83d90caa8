# SPDX-License-Identifier: Apache-2.0
"""LibraryMatmuls: matrix products of a CUDA device become calls of cuBLASLt."""

from __future__ import annotations

import itertools
import re
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..compute.cuda import library
from ..compute.cuda.strided import Axis, StridedProduct, strided
from ..config import StitchConfig, checked_config
from ..device import capability_of, resolve_target
from ..failures import Refusal, error_text, let_pass
from ..graph.extent import Extent, as_expr, is_number, same
from ..interrupts import carrying
from .views import View, shape_of, views, whole

LIBRARY = "cuBLASLt"

WORKSPACE_BYTES = {0: 4 << 20, 90: 32 << 20}
"""Device memory that a product may use beside its operands, by ten times the least compute capability: NVIDIA's
recommendation. It is planned with all other storage of a function, so that products in a row share it."""

_DTYPES = ("float32", "float16", "bfloat16")
_BFLOAT16_FROM = 80


@tvm.transform.module_pass(opt_level=0, name="LibraryMatmuls")
class LibraryMatmuls:
    """Replace ``R.matmul`` by calls of cuBLASLt that read operands as they lie in memory.

    An operand that is a transposed, permuted, reshaped or broadcast value is read in that value's place where the
    library can. Runs before ``LegalizeOps``; ``computed``, if given, receives for each product what computes it, and
    why. With ``compute="auto"`` all products are left to TVM where cuBLASLt is not installed.
    """

    def __init__(
        self, target: Any, config: StitchConfig | None = None, computed: dict[str, str] | None = None
    ):
        self.target, self.config = resolve_target(target), checked_config(config)
        self.computed = computed if computed is not None else {}

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the products of every Relax function."""
        functions = {
            gvar: func
            for gvar, func in mod.functions_items()
            if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs)
        }
        if not any(map(_has_products, functions.values())):
            return mod
        rewriter = _Rewriter(mod, self, self._why_not())
        for gvar, func in functions.items():
            rewriter.rewrite(gvar, func)
        return relax.transform.DeadCodeElimination()(rewriter.builder_.get())

    def _why_not(self) -> str | None:
        """Why no product is computed by the library."""
        reason = library.missing()
        if reason is None:
            try:
                library.load()
                return None
            except Exception as err:
                let_pass(err)
                reason = error_text(err)
        return reason if self.config.compute == "auto" else None


def _has_products(func: Any) -> bool:
    found = []
    relax.analysis.post_order_visit(func, lambda e: found.append(e) if _is_product(e) else None)
    return bool(found)


def _is_product(value: Any) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.matmul"


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, owner: LibraryMatmuls, why_not: str | None):
        super().__init__(mod)
        self.owner, self.why_not = owner, why_not
        self.values: dict[Any, Any] = {}
        self.name = ""

    def rewrite(self, gvar: Any, func: Any) -> None:
        self.values = dict(relax.analysis.get_var2val(func).items())
        self.builder_.update_func(gvar, self.visit_expr(func))

    def visit_var_binding_(self, binding: Any) -> None:
        if _is_product(binding.value):
            self.name = str(binding.var.name)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        if not _is_product(call):
            return super().visit_call_(call)
        owner, name = self.owner, f"matmul {self.name}"
        try:
            if self.why_not is not None:
                raise Refusal(self.why_not)
            found, left, right = self._laid_out(call)
        except Exception as err:
            let_pass(err)
            owner.computed[name] = f"TVM: {error_text(err)}"
            return super().visit_call_(call)
        owner.computed[name] = f"{LIBRARY}: {described(found)}"
        made = library_call(found, [self.visit_expr(v.value) for v in (left, right)], call.ty, owner)
        return relax.TupleGetItem(self.builder_.emit(made), 0)

    def _laid_out(self, call: Any) -> tuple[StridedProduct, View, View]:
        """The product over the earliest values that its operands are views of and the library can read."""
        check_dtypes(call, self.owner.target)
        chains = [list(views(arg, self._definition)) for arg in call.args]
        out = shape_of(call)
        if out is None or not all(chains):
            raise Refusal("its shapes are not known")
        pairs = itertools.product(*(range(len(chain)) for chain in chains))
        first: Refusal | None = None
        for i, j in sorted(pairs, key=sum, reverse=True):
            try:
                left, right = chains[0][i], chains[1][j]
                found = strided(product_axes(left, right, out))
                return (found, right, left) if found.swapped else (found, left, right)
            except Refusal as refusal:
                first = refusal
        assert first is not None  # that of the operands themselves
        raise first

    def _definition(self, value: Any) -> Any:
        """The call that a variable is bound to, where what the call reads can be read in its stead."""
        call = self.values.get(value)
        if not isinstance(call, relax.Call) or not call.args:
            return None
        hidden = isinstance(call.args[0], relax.DataflowVar) and not isinstance(value, relax.DataflowVar)
        return None if hidden else call


def check_dtypes(call: Any, target: Any) -> None:
    """Raise a Refusal unless the library has products of these dtypes."""
    left, right = (str(arg.ty.dtype) for arg in call.args)
    out = str(call.ty.dtype)
    if left != right or left not in _DTYPES or out not in (left, "float32"):
        raise Refusal(f"a product of {left} and {right} in {out} is none that {LIBRARY} is asked for")
    if left == "bfloat16" and capability_of(target) < _BFLOAT16_FROM:
        raise Refusal(f"bfloat16 needs compute capability {_BFLOAT16_FROM / 10:.1f}")


def product_axes(left: View, right: View, out: tuple[Extent, ...]) -> list[Axis]:
    """The axes of a matmul whose operands are views; the last one is that which it sums over.

    Raises:
        Refusal: where extents may be broadcast at run time, or there are no elements.
    """
    if any(is_number(e, 0) for e in (*left.extents, *right.extents)):
        raise Refusal("it has no elements")
    sides = [_as_matrices(left, 0), _as_matrices(right, 1)]
    depth = [sides[0].extents[-1], sides[1].extents[-2]]
    if not same(*depth):
        raise Refusal(f"its depth is {depth[0]} on the left and {depth[1]} on the right")
    full = list(out)
    if len(left.extents) == 1:
        full.insert(len(full) - (len(right.extents) > 1), 1)
    if len(right.extents) == 1:
        full.append(1)
    strides = whole(None, full).strides
    axes = [
        Axis(extent, _batch_stride(sides[0], i, full), _batch_stride(sides[1], i, full), strides[i])
        for i, extent in enumerate(full[:-2])
    ]
    axes.append(Axis(full[-2], sides[0].strides[-2], 0, strides[-2]))
    axes.append(Axis(full[-1], 0, sides[1].strides[-1], strides[-1]))
    axes.append(Axis(depth[0], sides[0].strides[-1], sides[1].strides[-2], 0))
    return axes


def _as_matrices(view: View, at: int) -> View:
    """A vector as a matrix of one row (on the left, ``at`` 0) or one column (on the right)."""
    if len(view.extents) > 1:
        return view
    extents, strides = list(view.extents), list(view.strides)
    extents.insert(at, 1)
    strides.insert(at, 0)
    return View(view.value, tuple(extents), tuple(strides))


def _batch_stride(side: View, axis: int, out: list[Extent]) -> Extent:
    """The stride of a side along an axis of the result, counted from the innermost: 0 where it is broadcast."""
    own = axis - len(out) + len(side.extents)
    if own < 0 or is_number(side.extents[own], 1):
        return 0
    if not same(side.extents[own], out[axis]):
        raise Refusal(f"whether {side.extents[own]} is broadcast to {out[axis]} is known at run time only")
    return side.strides[own]


def library_call(
    found: StridedProduct, operands: list[Any], ty: Any, owner: LibraryMatmuls, *more: str
) -> Any:
    """The call that computes a product: a tuple of its result and the workspace that it used.

    Args:
        found: how its operands lie.
        operands: left and right side, and what an epilogue reads.
        ty: the type of the result.
        owner: names the target and the options.
        more: words for the mode.
    """
    numbers = relax.ShapeExpr([as_expr(n) for n in found.numbers])
    tf32 = "tf32" if owner.config.tf32 and str(operands[0].ty.dtype) == "float32" else ""
    mode = tvm.ir.StringImm(found.mode(*more, tf32))
    capability = capability_of(owner.target)
    size = WORKSPACE_BYTES[max(least for least in WORKSPACE_BYTES if capability >= least)]
    result = relax.TensorType(ty.shape, str(ty.dtype))
    workspace = relax.TensorType([size], "uint8")
    arguments = relax.Tuple([*operands, numbers, mode])
    return relax.call_dps_packed(library.MATMUL, arguments, [result, workspace])


def described(found: StridedProduct) -> str:
    """A product's sizes, and how its sides lie, in words."""
    batch = "" if is_number(found.batch, 1) else f"{_plain(found.batch)} of "
    words = [f"{batch}{' x '.join(_plain(e) for e in (found.rows, found.columns, found.depth))}"]
    words += ["result by columns"] if found.swapped else []
    words += [f"{side} side transposed" for side in ("left", "right") if getattr(found, f"{side}_transposed")]
    return ", ".join(words)


def _plain(extent: Extent) -> str:
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(extent))
