# SPDX-License-Identifier: Apache-2.0
"""The scheduled PrimFunc of a compute-intensive operator and its epilogue, for a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.kernel import emit_stage
from ...codegen.emit import sound_for_cpu
from ...codegen.gpu.memory.scratch import WORKSPACE_ATTR
from ...compat import Buffer, PrimFunc, Stmt, tir
from ...config import StitchConfig
from ...device import DeviceModel
from ...graph.extent import as_expr
from ...plan.in_block import plan_in_block
from ...scope.fusion import Pattern
from ...support.failures import Refusal
from ..anchored import Anchored
from ..convolution import Convolution
from .amx.instruction import TileInstruction
from .amx.tasks import MatrixTileTasks
from .convolution import MixedTasks
from .depthwise import DepthwiseTasks
from .matmul import MatmulTasks
from .tiles import Tiles
from .write_back import WriteBack, write_back

COMPUTE_ATTR = "tvm_stitch.compute"
"""Attribute of kernels that hold a compute-intensive operator."""
_MARKS = {compat.attribute("is_scheduled"): True, "op_pattern": int(Pattern.OPAQUE), COMPUTE_ATTR: True}


def compute_func(params: Sequence[Any], body: Stmt) -> PrimFunc:
    """Return a scheduled PrimFunc with the attributes of a compute-intensive kernel."""
    return tir.PrimFunc(list(params), body).with_attrs({**_MARKS, "tirx.noalias": True, "s_tir": True})


def emit_anchored(
    func: PrimFunc,
    anchor: Anchored,
    tiles: Tiles,
    packed: Buffer | None,
    device: DeviceModel,
    config: StitchConfig,
) -> PrimFunc:
    """Return the scheduled PrimFunc that computes an operator and then its epilogue.

    The epilogue is evaluated tile by tile if possible. Otherwise it follows the whole operator, whose result is
    then in workspace: the function's last parameter (see ``relax/stitch/lift_workspace.py``). For TVMs with Relay,
    where shapes are static, the function allocates it.

    Args:
        func: the function that consists of both.
        anchor: its compute-intensive operator and epilogue.
        tiles: the sizes of tiles.
        packed: the weight as the template reads it (see :mod:`~.packing`), which replaces its parameter. None if the
            template reads the weight as stored.
        device: the CPU.
        config: options of the plan for an epilogue of the whole result.

    Raises:
        Refusal: if no plan serves the epilogue.
    """
    product, graph = anchor.product, anchor.epilogue
    is_result = any(
        b is not None and b.same_as(product.output.buffer) for _, b in compat.prim_func_params(func)
    )
    plan, out = None, WriteBack(product.output, product.columns)
    if graph is not None:
        try:
            out = write_back(graph, product.output, anchor.rows, product.columns, device, is_result)
        except Refusal:
            plan = plan_in_block(graph, device, config)
    attrs = dict(_MARKS)
    shape = [as_expr(extent) for extent in product.output.shape]
    workspace = []
    if plan is not None and not is_result and compat.TAKES_WORKSPACE:
        # The caller provides the memory. TVM computes how much of a kernel's allocation is used, and may then
        # divide by extents that are 0.
        product.output.buffer = tir.decl_buffer(shape, product.output.dtype, "product")
        workspace.append(product.output.buffer)
        attrs[WORKSPACE_ATTR] = 1
    of_tiles = isinstance(tiles.instruction, TileInstruction)
    instruction = tiles.instruction
    with B.kernel() as body, nullcontext() if instruction is None else instruction.declared():
        if plan is not None and not is_result and not workspace:
            product.output.buffer = compat.allocate(shape, product.output.dtype, B.STACK, "product")
        if not isinstance(product, Convolution):
            (MatrixTileTasks if of_tiles else MatmulTasks)(product, tiles, packed, out).emit()
        else:
            assert packed is not None
            kind = DepthwiseTasks if product.is_depthwise else MixedTasks
            kind(product, tiles, packed, out).emit()
        if plan is not None:
            emit_stage(plan.stage)
    replaced = {} if packed is None else {anchor.weight.buffer: packed}
    emitted = compat.with_body_and_params(func, body[0], replaced, workspace)
    return sound_for_cpu(emitted.with_attrs(attrs))
