# SPDX-License-Identifier: Apache-2.0
"""Attention on a CUDA device in one kernel of this package, which keeps scores on chip.

The PrimFunc holds launch, sizes and pointers, and calls a device function in CUDA C. The call carries the
function's text, so that a saved model needs nothing more and the emulator can run it.

Half types (``attention.cuh``) use an online softmax. Warps hold 16 or 32 queries, whose scores are fragments of
``mma``. K and V use cp.async staging, twice 64 rows, and Q stays in registers if there are enough. There is one
barrier per 64 keys. Behind it one tile has arrived, and the other one is free. The number of blocks per
multiprocessor matters little (1 to 4 within 5%), until registers are spilled. More than 260 TFLOP/s would need
tiles of ``wgmma``.

For float32 (``attention_float.cuh``) a thread multiplies 8 queries by 4 keys, then 8 rows of weights by its columns
of V. Both come from shared memory, where 12 reads of 16 bytes serve 128 operations. It reaches 53 TFLOP/s, four
fifths of an H100's peak. The weights stay in a warp. K and V are each copied while the other one is in use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache

from ... import compat
from ...codegen import builder as B
from ...codegen.gpu.launch_bounds import bound_registers
from ...compat import Analyzer, Buffer, Expr, PrimFunc, T, Var, tir
from ...device import DeviceModel
from ...graph.dtype import MULTIPLIED, item_bytes
from ...graph.extent import as_expr, ceildiv, is_number, product
from ...support.failures import Refusal
from ..attention import Attention, Operand, check_sizes
from ..cpu.emit import compute_func
from .sources import ELEMENT_TYPES, sources

FIRST_CAPABILITY = 80
"""Ten times the least compute capability: that of ``mma`` with bfloat16 operands."""

LARGEST_HEAD = 128
"""Most elements of a head for which rows of Q, sums and scores fit into a thread's registers."""

THREADS = 128
TILE = 64
"""Queries of a block if each of its warps has one tile of 16."""

SMALL_HEAD = 64
"""Most elements of a head for which more than two blocks find enough registers on a multiprocessor."""

_ALIGNMENT_BYTES = 16
_FILES = {
    "attention": ("attention",),
    "attention_of_floats": ("attention", "attention_float"),
    "attention_few": ("attention", "attention_few"),
    "attention_few_units": ("attention", "attention_few", "attention_few_units"),
}
"""The files of each device function. The last one gives its name."""

_SHARED = {"attention_few": "float", "attention_few_units": "float"}
"""The type of what a device function has in shared memory, if it is not that of the operands."""


def check(attention: Attention, shared_bytes: int) -> None:
    """Raise a Refusal unless the kernel supports this attention with ``shared_bytes`` bytes of shared memory."""
    check_types(attention, LARGEST_HEAD)
    if _shared_bytes(attention, 1) > shared_bytes:
        raise Refusal(
            f"heads of {attention.size} elements take more than {shared_bytes} bytes of shared memory"
        )


def check_types(attention: Attention, largest: int) -> None:
    """Raise a Refusal unless the types are those of the kernels, and heads have at most ``largest`` elements."""
    dtypes = {operand.dtype for operand in (attention.q, attention.k, attention.v)}
    if len(dtypes) > 1 or not dtypes <= set(MULTIPLIED):
        raise Refusal(f"attention of {' and '.join(sorted(dtypes))} has no kernel of ours")
    if attention.out.dtype not in ELEMENT_TYPES or (
        attention.mask and attention.mask.dtype not in ELEMENT_TYPES
    ):
        raise Refusal("its mask or result is of a type that the kernel does not have")
    check_sizes(attention, attention.scale, largest)


def cuda_attention(attention: Attention, numbers: Sequence[Var], device: DeviceModel) -> PrimFunc:
    """Return the scheduled PrimFunc. Its parameters are the inputs, ``numbers`` and the result.

    Args:
        attention: the computation.
        device: the GPU that the kernel is for.
        shared_bytes: shared memory available to a block.

    Raises:
        Refusal: as :func:`check` does.
    """
    check(attention, device.shared_per_block)
    buffers = [operand.declared(name) for operand, name in zip(attention.inputs, "qkvm")]
    out = attention.out.declared("out")
    tiles = _tiles(attention, device)
    blocks = product([*attention.leading, ceildiv(attention.queries, TILE * tiles)])
    with B.kernel() as body, ExitStack() as stack:
        stack.enter_context(T.launch_thread("blockIdx.x", as_expr(blocks)))
        stack.enter_context(T.launch_thread("threadIdx.x", B.i64(THREADS)))
        bound_registers(stack, _resident(attention, tiles))
        shared = B.local([_shared_elements(attention, tiles)], attention.q.dtype, "shared", "shared.dyn")
        pointers = [pointer_to(b, o) for b, o in zip(buffers, attention.inputs)]
        function = "attention_of_floats" if _is_float(attention) else "attention"
        masked = 0 if attention.mask is None else 1 if is_number(attention.mask.strides[3], 0) else 2
        end = pointer_to(out, attention.out)
        B.evaluate(kernel_call(attention, function, "Of", tiles, masked, shared.data, pointers, end))
    return compute_func([*buffers, *numbers, out], body[0])


def is_aligned(attention: Attention) -> bool:
    """Return whether rows of q, k, v and the result provably begin at multiples of 16 bytes."""
    analyzer = Analyzer()
    for operand in (attention.q, attention.k, attention.v, attention.out):
        elements = B.i64(_ALIGNMENT_BYTES // item_bytes(operand.dtype))
        for number in (operand.offset, *operand.strides):
            if not analyzer.can_prove(tir.floormod(as_expr(number), elements) == 0):
                return False
    return attention.size * item_bytes(attention.q.dtype) % _ALIGNMENT_BYTES == 0


def _tiles(attention: Attention, device: DeviceModel) -> int:
    """Return the number of tiles of 16 queries per warp."""
    if _is_float(attention):
        return 1
    few = (
        isinstance(attention.queries, int) and attention.queries < device.choices.attention_two_tiles_queries
    )
    return 1 if few or _shared_bytes(attention, 2) > device.shared_per_block else 2


def _shared_bytes(attention: Attention, tiles: int) -> int:
    return _shared_elements(attention, tiles) * item_bytes(attention.q.dtype)


def _resident(attention: Attention, tiles: int) -> int:
    """Return the number of blocks that share a multiprocessor's registers."""
    if tiles > 1 or attention.size > SMALL_HEAD:
        return 2
    if _is_float(attention):
        return 3
    return 4 if attention.mask is None else 3


def _shared_elements(attention: Attention, tiles: int) -> int:
    """Return the elements of shared memory of a block.

    These are padded rows of Q, and twice those of K and V. For float32, K and V are there once, and the weights
    too.
    """
    if _is_float(attention):
        filled = -(-attention.size // 4) * 4
        columns = -(-attention.size // 32) * 32
        keys = TILE if attention.size <= SMALL_HEAD else TILE // 2
        return (TILE + keys) * 4 * (filled // 4 | 1) + keys * columns + TILE * (keys + 4)
    line = -(-attention.size // 16) * 16 + _ALIGNMENT_BYTES // item_bytes(attention.q.dtype)
    return (tiles + 4) * TILE * line


def _is_float(attention: Attention) -> bool:
    return attention.q.dtype == "float32"


def pointer_to(buffer: Buffer, operand: Operand) -> Expr:
    """Return a pointer to the first element of an operand."""
    flat = B.flat_view(buffer)
    return tir.address_of(B.fetch(flat, as_expr(operand.offset)))


def kernel_call(
    attention: Attention,
    function: str,
    means: str,
    tiles: int,
    masked: int,
    shared: Expr,
    pointers: list[Expr],
    out: Expr,
) -> Expr:
    """Return the call of a device function, with its text.

    Args:
        attention: the computation.
        function: the function's name, which is that of its file, or ``"attention_of_floats"``.
        means: the function's template argument, with ``Of`` for the attention's traits.
        tiles: tiles of queries of a warp.
        masked: the kind of mask: 0 none, 1 the same for all queries, 2 one of each score.
        shared: pointer to shared memory.
        pointers: to the inputs.
        out: pointer to the result.
    """
    mask = attention.mask
    traits = ", ".join(
        [
            *(ELEMENT_TYPES[o.dtype] for o in (attention.q, attention.out, mask or attention.out)),
            *map(str, (attention.size, tiles, masked)),
            *map(str, map(int, (attention.causal is not None, attention.safe, is_aligned(attention)))),
        ]
    )
    words = [*traits.replace("__nv_", "").split(", "), *re.findall(r"\d+", means)]
    name = "_".join([f"tvm_stitch_{_FILES[function][-1]}", *words])
    pointers = pointers if mask is not None else [*pointers, out]  # not read without a mask
    sizes = (*attention.leading[1:], attention.queries, attention.keys, attention.causal or 0)
    strides = [s for o in (attention.q, attention.k, attention.v, attention.out) for s in o.strides]
    strides += mask.strides if mask is not None else (0, 0, 0, 0, 0)
    numbers = [tir.Cast("int32", as_expr(size)) for size in sizes]
    numbers += [compat.const(attention.scale, "float32"), *map(as_expr, strides)]
    return T.cuda.func_call(
        name,
        shared,
        *pointers,
        out,
        *numbers,
        source_code=_source(function)
        + _WRAPPER.format(
            name=name, traits=traits, means=means, function=function, shared=_SHARED.get(function, "T")
        ),
    )


_WRAPPER = """
__device__ __forceinline__ void {name}(
    void* shared, const void* q, const void* k, const void* v, const void* mask, void* out, int batches, int heads,
    int queries, int keys, int offset, float scale, long long q0, long long q1, long long q2, long long q3,
    long long k0, long long k1, long long k2, long long k3, long long v0, long long v1, long long v2, long long v3,
    long long o0, long long o1, long long o2, long long o3, long long m0, long long m1, long long m2, long long m3,
    long long m4) {{
  using namespace tvm_stitch;
  using Of = Traits<{traits}>;
  using T = Of::Element;
  {function}<{means}>(({shared}*)shared, (const T*)q, (const T*)k, (const T*)v, (const Of::MaskElement*)mask,
                (Of::Result*)out, batches, heads, queries, keys, offset, scale, Rows{{q0, q1, q2, q3}},
                Rows{{k0, k1, k2, k3}},
                Rows{{v0, v1, v2, v3}}, Rows{{o0, o1, o2, o3}}, MaskStrides{{m0, m1, m2, m3, m4}});
}}
"""


@cache
def _source(function: str) -> str:
    return sources("copies", *_FILES[function])
