# SPDX-License-Identifier: Apache-2.0
"""TVM's importer of exported programs with the converters of this package, and a check of every node's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ..complexes.parts import Parts
from ..complexes.table import complex_operators, with_complex
from ..core import Converter
from .results import checked
from .state import View
from .unsupported import path_of

__all__ = ["Importer"]


class Importer(ExportedProgramImporter):
    """TVM's importer that converts each node by ``converters``, or by its own converter if there is none."""

    def __init__(self, converters: Mapping[str, Converter]):
        """Create an importer of one program.

        Args:
            converters: converters by the overload's name, each a function of the node and the importer.
        """
        self.converters = dict(converters)
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
        return self.from_exported_program(view, keep_params_as_input, unwrap, unbound, None)

    def _translate_fx_graph(
        self, graph_module: Any, nodes: Any, inputs_vars: Any, custom_ops: Any = None
    ) -> Any:
        """Return the results in the order of the view."""
        results = super()._translate_fx_graph(graph_module, nodes, inputs_vars, custom_ops)
        if graph_module is not self._main or len(results) < len(self._order):
            return results
        return tuple(results[at] for at in self._order)

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

    def _noted(self, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def converted(node: Any) -> Any:
            result = checked(node, convert(node))
            fields = result.fields if isinstance(result, relax.Tuple) else result
            for field in fields if isinstance(result, (relax.Tuple, list, tuple)) else [result]:
                field = field.real if isinstance(field, Parts) else field
                if isinstance(field, relax.Var):
                    path = path_of(node)
                    name = f"{path}/{node.name}" if path else str(node.name)
                    self.names.setdefault(str(field.name), name)
            return result

        return converted
