# SPDX-License-Identifier: Apache-2.0
"""Converters for PyTorch operators that TVM's importer misreads or rejects, for its ``custom_convert_map``.

Wrong results of the importer cannot be repaired in its module. For SELU, for example, it returns an ELU without a
factor.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import tirx
from tvm.relax import op as R

from ...compat import int_value
from .arithmetic import arithmetic_converters, in_type
from .backward import Converter, backward_converters, constant, number
from .core import core_converters, dtype_name
from .experts import expert_converters
from .importing.results import checked
from .importing.table import THEIRS, reason_for
from .importing.unsupported import Unsupported, name_of
from .indexing import indexing_converters
from .operators.bits import bit_converters
from .operators.creation import creation_converters
from .operators.elementwise import elementwise_converters
from .operators.gathers import gather_converters
from .operators.loops import loop_converters
from .operators.recurrent import recurrent_converters
from .operators.reductions import reduction_converters
from .operators.regions import region_converters
from .operators.scalars import scalar_converters
from .operators.shapes import shape_converters
from .operators.splits import split_converters
from .operators.values import HALVES, cast, type_name, widened
from .pooling import pooling_converters
from .products import product_converters
from .resizing import resizing_converters

__all__ = ["own_converters", "torch_converters"]


def own_converters() -> dict[str, Converter]:
    """Return the converters of this package by overload: those of all modules, concatenations and ELU.

    Those of other namespaces than PyTorch's come without it too, because TVM's importer looks them up so. The check of
    a program's operators has it.
    """
    own = {
        **arithmetic_converters(),
        **backward_converters(),
        **bit_converters(),
        **core_converters(),
        **creation_converters(),
        **elementwise_converters(),
        **gather_converters(),
        **reduction_converters(),
        **region_converters(),
        **scalar_converters(),
        **shape_converters(),
        **split_converters(),
        **expert_converters(),
        **indexing_converters(),
        **loop_converters(own_converters),
        **pooling_converters(),
        **product_converters(),
        **recurrent_converters(),
        **resizing_converters(),
        "cat.default": _concatenation,
        "elu.default": _elu,
        "sym_not": _symbolic_not,
    }
    return own | {name.rpartition("::")[2]: converter for name, converter in own.items()}


def torch_converters() -> dict[str, Converter]:
    """Return converters for TVM's own ``from_exported_program(program, custom_convert_map=...)``.

    :func:`tvm_stitch.importers.torch.from_exported_program` does more: it decomposes further operators, returns what
    a program changes, and imports branches. Overloads of TVM's importer that are not known to be right are refused.
    """
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    own = own_converters()
    others = set(ExportedProgramImporter().create_convert_map()) - THEIRS - set(own)
    return {
        **dict.fromkeys(others, _refused),
        **{name: partial(_with_check, converter) for name, converter in own.items()},
    }


def _with_check(converter: Converter, node: Any, importer: Any) -> Any:
    return checked(node, converter(node, importer))


def _refused(node: Any, importer: Any) -> Any:
    raise Unsupported.at(node, reason_for(name_of(node)))


def _concatenation(node: Any, importer: Any) -> Any:
    """(tensors, axis) -> one tensor, in the type of all.

    Tensors of one axis without elements are ignored, whatever axes the others have. Caches of transformers begin
    so.
    """
    given = [importer.env[arg] for arg in node.args[0]]
    some = [each for each in given if [int_value(extent) for extent in each.ty.shape] != [0]] or given[:1]
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    tensors = in_type(some, dtype_name(node.meta["val"].dtype), importer)
    return tensors[0] if len(tensors) == 1 else importer.block_builder.emit(R.concat(tensors, axis))


def _symbolic_not(node: Any, importer: Any) -> Any:
    """(condition), of symbolic extents."""
    condition = importer.env[node.args[0]]
    return not condition if isinstance(condition, bool) else tirx.Not(condition)


def _elu(node: Any, importer: Any) -> Any:
    """(input, alpha, scale, input scale) -> scale * (x where x > 0, else alpha * (exp(x * input scale) - 1)).

    TVM's importer ignores both scales. SELU is an ELU with a scale. Half types are computed in float32, as in PyTorch.
    """
    given, emit = importer.env[node.args[0]], importer.block_builder.emit
    scales = {name: number(node, at, node.kwargs.get(name, 1.0)) for at, name in _SCALES.items()}
    unscaled = scales["scale"] == scales["input_scale"] == 1.0
    if unscaled and (scales["alpha"] == 1.0 or type_name(given) not in HALVES):
        return importer._elu(node)
    x = widened(given, importer)
    inner = x if scales["input_scale"] == 1.0 else emit(R.multiply(x, constant(scales["input_scale"], x)))
    # Above zero the exponential may be infinite, so its operand is clamped before.
    below = emit(R.minimum(inner, constant(0.0, x)))
    below = emit(R.subtract(emit(R.exp(below)), constant(1.0, x)))
    below = emit(R.multiply(below, constant(scales["alpha"] * scales["scale"], x)))
    above = emit(R.multiply(emit(R.nn.relu(x)), constant(scales["scale"], x)))
    return cast(emit(R.add(above, below)), type_name(given), importer)


_SCALES = {1: "alpha", 2: "scale", 3: "input_scale"}
