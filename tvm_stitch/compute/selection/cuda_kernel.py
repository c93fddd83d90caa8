# SPDX-License-Identifier: Apache-2.0
"""The largest or smallest elements of rows on a CUDA device: one kernel, in which a block or a cluster has a row.

``compute/cuda/native/rows/selection.cuh`` has the algorithm. Few long rows are shared by the blocks of clusters.
"""

from __future__ import annotations

from contextlib import ExitStack

from ...codegen import builder as B
from ...codegen.emit import sound_for_gpu
from ...compat import Buffer, Expr, PrimFunc, T, tir
from ...device import DeviceModel
from ...graph.extent import Extent
from ...repairs.tir.opaque import as_c_type
from ...repairs.tir.zero_divisors import is_positive
from ..cpu.emit import compute_func
from ..cuda.sources import sources
from .selection import Selection

THREADS = 512
CLUSTERS = (8, 4, 2)
"""Numbers of blocks that may share a row."""
_CHUNK = 16 * THREADS
"""Elements that a block has in registers at once."""
_C_TYPES = {
    "float32": "float", "float16": "half", "bfloat16": "__nv_bfloat16", "int8": "signed char", "int16": "short",
    "int32": "int", "int64": "long long", "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned",
}  # fmt: skip


def blocks_of_row(rows: Extent, length: Extent, device: DeviceModel) -> int:
    """Return the number of blocks that share a row: as many as have half a chunk, if all run at once.

    Args:
        rows, length: extents of the input.
        device: the GPU that the kernel is for.
    """
    if not isinstance(rows, int) or rows * CLUSTERS[-1] > device.sms:
        return 1
    known = length if isinstance(length, int) else CLUSTERS[0] * _CHUNK
    fitting = (
        n
        for n in CLUSTERS
        if n <= device.max_cluster and rows * n <= device.sms and known // n >= _CHUNK // 2
    )
    return next(fitting, 1)


def cuda_selection(selection: Selection, device: DeviceModel) -> PrimFunc:
    """Return the scheduled PrimFunc. Its parameters are the rows and the results.

    Args:
        selection: what is selected.
        device: the GPU that the kernel is for.
    """
    x, results = selection.buffers()
    rows, length = x.shape
    blocks = blocks_of_row(selection.rows, selection.length, device)
    # One row is launched even if there is none. It does nothing.
    launched = rows if is_positive(rows) else tir.Max(rows, B.i64(1))
    with B.kernel() as body, ExitStack() as stack:
        block = stack.enter_context(T.launch_thread("blockIdx.x", launched * B.i64(blocks)))
        if blocks > 1:
            stack.enter_context(T.launch_thread("clusterCtaIdx.x", B.i64(blocks)))
        stack.enter_context(T.launch_thread("threadIdx.x", B.i64(THREADS)))
        row = tir.floordiv(block, B.i64(blocks))
        with B.when(None if is_positive(rows) else as_c_type(rows, "int64") > 0):
            B.evaluate(_call(selection, blocks, x, results, row, tir.Cast("int32", length)))
    return sound_for_gpu(compute_func([x, *results], body[0]))


def _call(
    selection: Selection, blocks: int, x: Buffer, results: list[Buffer], row: Expr, length: Expr
) -> Expr:
    """Return the call of the device function for one row, with its text."""
    element, kinds = _C_TYPES[selection.dtype], [_C_TYPES[dtype] for dtype in selection.results]
    stores = [f"(({kind}*)result{i})[place] = index;" for i, kind in enumerate(kinds)]
    if selection.values:
        stores[0] = stores[0].replace("index", f"((const {element}*)row)[index]")
    numbers = (selection.count, int(selection.largest), blocks)
    words = [
        selection.dtype,
        *selection.results,
        *map(str, numbers),
        *(["values"] if selection.values else []),
    ]
    name = "_".join(["tvm_stitch_selection", *words])
    code = sources("rows/selection") + _CALL.format(
        name=name,
        results=", ".join(f"void* result{i}" for i in range(len(kinds))),
        arguments=", ".join(
            [element, str(selection.count), "true" if selection.largest else "false", str(blocks)]
        ),
        element=element,
        stores=" ".join(stores),
    )
    flat = [B.flat_view(buffer) for buffer in (x, *results)]
    starts = [row * x.shape[1], *[row * B.i64(selection.count)] * len(results)]
    pointers = [tir.address_of(B.fetch(buffer, at)) for buffer, at in zip(flat, starts)]
    return T.cuda.func_call(name, *pointers, length, source_code=code)


_CALL = """
__device__ __forceinline__ void {name}(const void* row, {results}, int length) {{
  tvm_stitch::selection::select<{arguments}>((const {element}*)row, length, [&](int place, int index) {{ {stores} }});
}}
"""
