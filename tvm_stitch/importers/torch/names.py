# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs imported with the paths of their modules, which TVM's importer drops."""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ...relax.report.named_spans import with_named_calls


def from_exported_program_named(program: Any, **options: Any) -> tvm.IRModule:
    """``from_exported_program(program, **options)``, with names such as ``"encoder.layer.0.norm/native_layer_norm"``.

    A name is the path of the innermost module, and the node of PyTorch's graph in it. Of a node that becomes several
    calls the last has it.

    Args:
        program: a ``torch.export.ExportedProgram``.
        options: those of ``tvm.relax.frontend.torch.from_exported_program``, whose ``custom_convert_map`` comes first.

    Raises:
        Exception: what the importer raises.
    """
    names: dict[str, str] = {}
    maps: dict[int, Any] = {}  # by importer, its converters

    def convert(function: str, node: Any, importer: Any) -> Any:
        if id(importer) not in maps:
            maps[id(importer)] = importer.create_convert_map()
        return noted(node, maps[id(importer)][function](node))

    def noted(node: Any, made: Any) -> Any:
        fields = made.fields if isinstance(made, relax.Tuple) else made
        for field in fields if isinstance(made, (relax.Tuple, list, tuple)) else [made]:
            if isinstance(field, relax.Var):
                names.setdefault(str(field.name), _name(node))
        return made

    def convert_so(given: Any, node: Any, importer: Any) -> Any:
        return noted(node, given(node, importer))

    known = ExportedProgramImporter().create_convert_map()
    custom = {function: partial(convert, function) for function in known}
    given = options.pop("custom_convert_map", None) or {}
    custom |= {function: partial(convert_so, converter) for function, converter in given.items()}
    mod = from_exported_program(program, custom_convert_map=custom, **options)
    return with_named_calls(mod, names)


def _name(node: Any) -> str:
    """Return the path of the module that a node of PyTorch's graph is in, and the node's name."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]).removeprefix("L['self']").strip(".") if stack else ""
    return f"{path}/{node.name}" if path else str(node.name)
