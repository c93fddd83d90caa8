# SPDX-License-Identifier: Apache-2.0
"""TVM's importer of exported programs with the converters of this package, and a check of every node's result."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import tvm
from tvm import relax, te
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from .... import compat
from ....support.failures import error_text, reraise_fatal
from ...symbolic.computed import computed
from ..complexes.parts import Parts
from ..complexes.table import complex_operators, with_complex
from ..core import Converter, dtype_name
from .results import checked
from .state import View
from .unsupported import OutOfRange, Unsupported, path_of

__all__ = ["Importer"]

_TVM = str(Path(tvm.__file__).parent)


def _result(node: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a converter's result for a node.

    Raises:
        Unsupported: if TVM fails, in a converter or at a call that one emits, or a constant index is out of range.
    """
    try:
        return convert(node)
    except OutOfRange as error:
        raise Unsupported.at(node, str(error)) from error
    except Exception as error:  # of many kinds
        reraise_fatal(error)
        if not _raised_by_tvm(error):
            raise
        raise Unsupported.at(node, f"TVM's importer fails: {error_text(error)}") from error


def _is_tensor(value: Any) -> bool:
    return isinstance(value.ty, (relax.TensorType, relax.TupleType))


def _raised_by_tvm(error: BaseException) -> bool:
    names = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    python = [name for name in names if name.endswith(".py")]  # below them are frames of C++
    return bool(python) and python[-1].startswith(_TVM)


class Importer(ExportedProgramImporter):
    """TVM's importer that converts each node by ``converters``, or by its own converter if there is none."""

    def __init__(self, converters: Mapping[str, Converter], multiples: Mapping[str, int] | None = None):
        """Create an importer of one program.

        Args:
            converters: converters by the overload's name, each a function of the node and the importer.
            multiples: the divisors of symbolic extents, by the names of the symbols. A symbol ``h`` with the divisor 2
                becomes ``2*_h``.
        """
        self.converters = dict(converters)
        self.constants: dict[relax.Var, torch.Tensor] = {}
        """Values of the constants and buffers that become constants of the module, by their variables."""
        self._multiples = dict(multiples or {})
        self.names: dict[str, str] = {}
        """Names of the user's modules and nodes, by the Relax variables that hold their results."""
        super().__init__()

    def imported(self, view: View, keep_params_as_input: bool, unwrap: bool, unbound: bool) -> tvm.IRModule:
        """Return the module of a program.

        Args:
            view: the program.
            keep_params_as_input: whether parameters become inputs.
            unwrap: whether a single result is returned without a tuple.
            unbound: whether the tuple of results is returned without a variable.
        """
        self._main, self._order = view.graph_module, view.order
        self._kept_as_inputs = keep_params_as_input
        return self.from_exported_program(view, keep_params_as_input, unwrap, unbound, None)

    def create_input_vars(self, exported_program: Any) -> Any:
        """Return TVM's variables of parameters and inputs, and note which ones are bound to constants."""
        made = super().create_input_vars(exported_program)
        values = {**dict(exported_program.named_buffers()), **exported_program.constants}
        if not self._kept_as_inputs:
            named = {spec.arg.name: spec.target for spec in exported_program.graph_signature.input_specs}
            self.constants = {
                var: values[named[name]] for name, var in made[0].items() if named[name] in values
            }
        return made

    def _process_derived_symbol(self, symbol: Any, known: Any) -> tuple[str, Any]:
        """Return the name and the expression of an extent. TVM takes a fixed one for another symbol."""
        if getattr(symbol, "is_Integer", False):
            return str(symbol), compat.const(int(symbol), "int64")
        divisor = self._multiples.get(str(symbol))
        if divisor is not None:
            name = f"_{symbol}"
            var = known.setdefault(name, tvm.tirx.Var(name, "int64"))
            return str(symbol), compat.const(divisor, "int64") * var
        return super()._process_derived_symbol(symbol, known)

    def _prim_value_to_scalar_tensor(self, value: Any, dtype: str) -> Any:
        """Return a symbolic number as a tensor of no axis. TVM's importer does so with integers."""
        if "float" not in str(value.ty):
            return super()._prim_value_to_scalar_tensor(value, dtype)

        def scalar(value: Any) -> Any:
            return te.compute((), lambda: value.astype(dtype), name="scalar")

        return computed(self.block_builder, "scalar", scalar, (), (value,))

    def _translate_fx_graph(
        self, graph_module: Any, nodes: Any, inputs_vars: Any, custom_ops: Any = None
    ) -> Any:
        """Return the results in the order of the view."""
        results = super()._translate_fx_graph(graph_module, nodes, inputs_vars, custom_ops)
        if graph_module is not self._main or len(results) < len(self._order):
            return results
        return tuple(self._returned(results[at]) for at in self._order)

    def _returned(self, value: Any) -> Any:
        """Return a result of the program. Integers become tensors of no axis."""
        if compat.is_expr(value) and str(value.ty).startswith("int"):
            return self._prim_value_to_scalar_tensor(value, "int64")
        return value

    def create_convert_map(self) -> dict[str, Callable[[Any], Any]]:
        """Return a function of a node for each overload. Branches of ``torch.cond`` use the same ones."""
        theirs = super().create_convert_map()

        def bound(converter: Converter) -> Callable[[Any], Any]:
            return lambda node: converter(node, self)

        known = {**theirs, **{name: bound(converter) for name, converter in self.converters.items()}}
        known = {
            name: with_complex(name, known.get(name), self) for name in known.keys() | complex_operators()
        }
        return {name: self._noted(convert) for name, convert in known.items()}

    @contextmanager
    def _numbers_as_tensors(self, node: Any) -> Iterator[None]:
        """Let a node that returns a tensor read symbolic floats, such as powers of a size, as tensors of no axis.

        Relax takes no functions of symbols for operands.
        """
        value = node.meta.get("val")
        before = {}
        if isinstance(value, torch.Tensor):
            dtype = dtype_name(value.dtype) if value.is_floating_point() else "float32"
            for each in node.all_input_nodes:
                given = self.env.get(each)
                if compat.is_expr(given) and "float" in str(given.ty) and not _is_tensor(given):
                    before[each] = given
                    self.env[each] = self._prim_value_to_scalar_tensor(given, dtype)
        yield
        self.env.update(before)

    def _noted(self, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def converted(node: Any) -> Any:
            with self._numbers_as_tensors(node):
                result = checked(node, _result(node, convert))
            fields = result.fields if isinstance(result, relax.Tuple) else result
            for field in fields if isinstance(result, (relax.Tuple, list, tuple)) else [result]:
                field = field.real if isinstance(field, Parts) else field
                if isinstance(field, relax.Var):
                    path = path_of(node)
                    name = f"{path}/{node.name}" if path else str(node.name)
                    self.names.setdefault(str(field.name), name)
            return result

        return converted
