# SPDX-License-Identifier: Apache-2.0
"""Import PyTorch programs with the paths of their modules, which TVM's importer drops."""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ...relax.report.named_spans import with_named_calls


def from_exported_program_named(program: Any, **options: Any) -> tvm.IRModule:
    """Run ``from_exported_program(program, **options)`` with names such as
    ``"encoder.layer.0.norm/native_layer_norm"``.

    A name consists of the path of the innermost module, and the node of PyTorch's graph in it. If a node becomes
    several calls, the last one has the name.

    Args:
        program: a ``torch.export.ExportedProgram``.
        options: those of ``tvm.relax.frontend.torch.from_exported_program``, whose ``custom_convert_map`` comes
            first.

    Raises:
        Exception: any error of the importer.
    """
    names: dict[str, str] = {}
    maps: dict[int, Any] = {}  # converters by importer

    def convert(function: str, node: Any, importer: Any) -> Any:
        if id(importer) not in maps:
            maps[id(importer)] = importer.create_convert_map()
        return noted(node, maps[id(importer)][function](node))

    def noted(node: Any, result: Any) -> Any:
        fields = result.fields if isinstance(result, relax.Tuple) else result
        for field in fields if isinstance(result, (relax.Tuple, list, tuple)) else [result]:
            if isinstance(field, relax.Var):
                names.setdefault(str(field.name), _name(node))
        return result

    def convert_so(given: Any, node: Any, importer: Any) -> Any:
        return noted(node, given(node, importer))

    known = ExportedProgramImporter().create_convert_map()
    custom = {function: partial(convert, function) for function in known}
    given = options.pop("custom_convert_map", None) or {}
    custom |= {function: partial(convert_so, converter) for function, converter in given.items()}
    mod = from_exported_program(program, custom_convert_map=custom, **options)
    return with_named_calls(mod, names)


def _name(node: Any) -> str:
    """Return the path of the module of a node in PyTorch's graph, and the node's name."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]).removeprefix("L['self']").strip(".") if stack else ""
    return f"{path}/{node.name}" if path else str(node.name)
