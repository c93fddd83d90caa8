# SPDX-License-Identifier: Apache-2.0
"""Import a program of ``torch.export``, with the converters and decompositions of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from ...relax.in_place.updates import with_results_in_place
from ...relax.report.named_spans import with_named_calls
from .converters import own_converters
from .decompositions import decomposed
from .importing.importer import Importer
from .importing.multiples import multiples_of
from .importing.state import State, replaced_inputs, view_of
from .importing.table import check_operators

__all__ = ["from_exported_program"]


def from_exported_program(
    program: Any,
    *,
    keep_params_as_input: bool = False,
    unwrap_unit_return_tuple: bool = False,
    no_bind_return_tuple: bool = False,
    custom_convert_map: Mapping[str, Any] | None = None,
    run_ep_decomposition: bool = True,
    state: State = "constants",
) -> tvm.IRModule:
    """Return the Relax module of a PyTorch program, whose function is ``main``.

    Calls keep names such as ``"encoder.layer.0.norm/native_layer_norm"``: the path of the innermost module, and the
    node of PyTorch's graph in it. If a node becomes several calls, the last one has the name.

    The function returns the program's results, and behind them each buffer and input that the program changes. The
    attribute ``torch_state`` of ``main`` names these in order.

    Args:
        program: a ``torch.export.ExportedProgram``.
        keep_params_as_input: whether parameters become inputs behind the program's own, and not constants.
        unwrap_unit_return_tuple: whether a single result is returned without a tuple.
        no_bind_return_tuple: whether the tuple of results is returned without a variable.
        custom_convert_map: further converters by overload, such as ``"add.Tensor"``. They come first.
        run_ep_decomposition: whether PyTorch decomposes the program's operators first.
        state: ``"constants"`` if each call starts with the exported values of the buffers that it changes. With
            ``"inputs"`` these buffers become inputs, behind the program's own. With ``"in_place"`` they are inputs
            too. New rows of these inputs, and of other inputs that the program changes, are written into their own
            memory. So the caller must go on with the results.

    Raises:
        Unsupported: if the program has operators that are not imported. The text names all of them.
    """
    multiples = multiples_of(program)
    if run_ep_decomposition:
        program = decomposed(program)
    view = view_of(program, state)
    custom = dict(custom_convert_map or {})
    converters = {**own_converters(), **custom}
    check_operators(program.graph_module, set(converters))
    importer = Importer(converters, multiples)
    mod = importer.imported(view, keep_params_as_input, unwrap_unit_return_tuple, no_bind_return_tuple)
    mod = _with_private_branches(mod)
    if view.changed:
        mod["main"] = mod["main"].with_attr("torch_state", [*view.changed])
    mod = with_named_calls(mod, importer.names)
    return with_results_in_place(mod, replaced_inputs(view)) if state == "in_place" else mod


def _with_private_branches(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose branches of ``torch.cond`` are private functions, with dataflow blocks to stitch."""
    branches = [gvar for gvar in mod.get_global_vars() if gvar.name_hint != "main"]
    if not branches:
        return mod
    mod = relax.transform.ConvertToDataflow(min_size=1)(mod)
    for gvar in mod.get_global_vars():
        if gvar.name_hint != "main" and isinstance(mod[gvar], relax.Function):
            mod[gvar] = mod[gvar].without_attr("global_symbol")
    return mod
