# SPDX-License-Identifier: Apache-2.0
"""Attention operators of ONNX Runtime: packed, multi-head and grouped-query attention, and rotary embeddings."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from ..matrix.attending import Scores, attend, both, merge_heads, positions, rotated, split_heads
from ..node import ANY, Conversion, Node, Unsupported, dtype_of, scalar, shape_of

DOMAIN = "com.microsoft"


def _precision(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _scale(node: Node) -> float | None:
    return node.attributes.get("scale") or None


def _padding(node: Node, position: int, keys: Any, batch: Any) -> relax.Expr | None:
    """Return a mask as a bias of ``mask_filter_value``, from lengths ``[batch]`` or a mask ``[batch, keys]``."""
    if not node.has(position):
        return None
    mask, dims = node.tensor(position), node.shape(position)
    low = scalar(node.attributes["mask_filter_value"], node.dtype(0))
    zero = scalar(0.0, node.dtype(0))
    if len(dims) == 1:
        if dims[0] != batch:
            raise Unsupported(
                f"a mask of {dims[0]} elements for a batch of {batch}; lengths of the batch are taken"
            )
        lengths = node.emit(
            relax.op.reshape(relax.op.astype(mask, "int64"), relax.ShapeExpr([batch, 1, 1, 1]))
        )
        kept = node.emit(relax.op.less(positions(node, keys, 0, 0), lengths))
    elif len(dims) == 2:
        kept = node.emit(relax.op.not_equal(mask, scalar(0, dtype_of(mask))))
        kept = node.emit(relax.op.reshape(kept, relax.ShapeExpr([dims[0], 1, 1, dims[1]])))
    elif len(dims) == 3:
        kept = node.emit(relax.op.expand_dims(relax.op.not_equal(mask, scalar(0, dtype_of(mask))), 1))
    else:
        raise Unsupported(f"a mask of {len(dims)} dimensions")
    return node.emit(relax.op.where(kept, zero, low))


def _causal(node: Node, queries: Any, keys: Any, past: Any) -> relax.Expr:
    return node.emit(relax.op.less_equal(positions(node, keys, 0, 0), positions(node, queries, past, 1)))


def _sum(node: Node, a: relax.Expr | None, b: relax.Expr | None) -> relax.Expr | None:
    if a is None or b is None:
        return a if b is None else b
    return node.emit(relax.op.add(a, b))


def _packed(node: Node) -> tuple[relax.Expr | None, ...]:
    """Convert Attention: input, weights of all three projections, bias, mask, past, attention bias."""
    given, dims = node.attributes, node.shape(0)
    heads = given["num_heads"]
    sizes = given.get("qkv_hidden_sizes") or [node.shape(1)[1] // 3] * 3
    joined = node.emit(relax.op.matmul(node.tensor(0), node.tensor(1)))
    if node.has(2):
        joined = node.emit(relax.op.add(joined, node.tensor(2)))
    ends = [0, sizes[0], sizes[0] + sizes[1], sum(sizes)]
    q, k, v = (
        split_heads(node, node.emit(relax.op.strided_slice(joined, [2], [ends[i]], [ends[i + 1]])), heads)
        for i in range(3)
    )
    past: Any = 0
    present = None
    if node.has(4):
        old = node.tensor(4)
        past = shape_of(old)[3]
        halves = [
            node.emit(relax.op.squeeze(relax.op.strided_slice(old, [0], [i], [i + 1]), [0])) for i in (0, 1)
        ]
        k, v = (node.emit(relax.op.concat([a, b], axis=2)) for a, b in zip(halves, (k, v)))
    if len(node.outputs) > 1 and node.outputs[1]:
        present = node.emit(relax.op.stack([k, v], axis=0))
    keys = shape_of(k)[2]
    bias = _sum(node, _padding(node, 3, keys, dims[0]), node.optional(5))
    allowed = _causal(node, dims[1], keys, past) if given["unidirectional"] else None
    results = attend(
        node, q, k, v, Scores(_scale(node), 0.0, bias, allowed, False, _precision(node.dtype(0)))
    )
    return merge_heads(node, results.output), present


def _multi_head(node: Node) -> tuple[relax.Expr | None, ...]:
    """Convert query, key, value, bias, key padding mask, attention bias, past key and past value."""
    given, heads = node.attributes, node.attributes["num_heads"]
    dims = node.shape(0)
    if len(dims) != 3 or not node.has(1) or not node.has(2):
        raise Unsupported("its queries, keys and values are packed in one tensor; export them apart")
    tensors = [node.tensor(i) for i in range(3)]
    if node.has(3):
        start = 0
        for i, tensor in enumerate(tensors):
            if len(shape_of(tensor)) != 3:
                raise Unsupported("it has a bias for keys that are split into heads already")
            size = shape_of(tensor)[2]
            part = node.emit(relax.op.strided_slice(node.tensor(3), [0], [start], [start + size]))
            tensors[i], start = node.emit(relax.op.add(tensor, part)), start + size
    q, k, v = (split_heads(node, t, heads) if len(shape_of(t)) == 3 else t for t in tensors)
    past: Any = 0
    if node.has(6):
        past = shape_of(node.tensor(6))[2]
        k = node.emit(relax.op.concat([node.tensor(6), k], axis=2))
        v = node.emit(relax.op.concat([node.tensor(7), v], axis=2))
    keys = shape_of(k)[2]
    bias = _sum(node, _padding(node, 4, keys, dims[0]), node.optional(5))
    allowed = _causal(node, dims[1], keys, past) if given["unidirectional"] else None
    results = attend(
        node, q, k, v, Scores(_scale(node), 0.0, bias, allowed, False, _precision(node.dtype(0)))
    )
    return merge_heads(node, results.output), k, v


def _grouped(node: Node) -> tuple[relax.Expr, ...]:
    """Convert GroupQueryAttention with caches that grow by the new keys, or that have room for them."""
    given, dtype = node.attributes, node.dtype(0)
    heads, groups = given["num_heads"], given["kv_num_heads"]
    batch, queries = node.shape(0)[:2]
    if not node.has(1) or not node.has(2):
        hidden = node.shape(0)[2]
        size = hidden // (heads + 2 * groups)
        ends = [0, heads * size, (heads + groups) * size, hidden]
        flat = [
            node.emit(relax.op.strided_slice(node.tensor(0), [2], [ends[i]], [ends[i + 1]])) for i in range(3)
        ]
    else:
        flat = [node.tensor(i) for i in range(3)]
    q, k, v = (split_heads(node, t, h) for t, h in zip(flat, (heads, groups, groups)))
    room = shape_of(node.tensor(3))[2] if node.has(3) else 0
    total = _total(node, queries, room)
    first = total is queries or total == queries
    starts = (
        scalar(0, "int64")
        if first
        else node.emit(
            relax.op.subtract(relax.op.astype(node.tensor(5), "int64"), scalar(queries - 1, "int64"))
        )
    )
    starts = node.emit(
        relax.op.broadcast_to(starts, relax.ShapeExpr([batch]))
        if first
        else relax.op.reshape(starts, relax.ShapeExpr([batch]))
    )
    if given["do_rotary"]:
        q, k = (_rotary(node, t, starts, batch, queries) for t in (q, k))
    keys = total if room == 0 or not isinstance(room, int) or not isinstance(total, int) else max(room, total)
    k, v = (t if first and room == 0 else _cached(node, p, t, starts, keys) for t, p in zip((k, v), (3, 4)))
    offset = node.emit(relax.op.reshape(starts, relax.ShapeExpr([batch, 1, 1, 1])))
    row, column = positions(node, queries, offset, 1), positions(node, keys, 0, 0)
    allowed = node.emit(relax.op.less_equal(column, row))
    window = given["local_window_size"]
    if window > 0:
        ahead = node.emit(relax.op.subtract(row, column))
        allowed = both(node, allowed, node.emit(relax.op.less(ahead, scalar(window, "int64"))))
    how = Scores(_scale(node), given["softcap"], node.optional(10), allowed, False, _precision(dtype))
    return merge_heads(node, attend(node, q, k, v, how).output), k, v


def _total(node: Node, queries: Any, room: Any) -> Any:
    """Return the number of keys, old and new, which has to be known at import."""
    if not isinstance(queries, int):
        raise Unsupported(f"its queries have the symbolic length {queries}; fix it (shape_dict, or --shape)")
    total = node.constant(6)
    if total is not None:
        return int(total.reshape(-1)[0])
    if room == 0:
        return queries
    raise Unsupported("its total_sequence_length is only known at run time; make it an initializer")


def _rotary(node: Node, x: relax.Expr, starts: relax.Expr, batch: Any, queries: Any) -> relax.Expr:
    if node.has(9):
        places = node.tensor(9)
    else:
        line = positions(node, queries, 0, 0)
        places = node.emit(relax.op.add(line, relax.op.reshape(starts, relax.ShapeExpr([batch, 1]))))
    cos, sin = (node.emit(relax.op.take(node.tensor(i), places, axis=0)) for i in (7, 8))
    wide = node.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    dims = 2 * shape_of(cos)[-1]
    y = rotated(node, wide, cos, sin, bool(node.attributes["rotary_interleaved"]), dims)
    return node.emit(relax.op.permute_dims(y, [0, 2, 1, 3]))


def _cached(node: Node, position: int, new: relax.Expr, starts: relax.Expr, keys: Any) -> relax.Expr:
    """Return a cache of ``keys`` elements with the new ones at each batch's own position."""
    old = node.optional(position)
    room = shape_of(old)[2] if old is not None else 0
    count, dtype = shape_of(new)[2], dtype_of(new)

    def written(n: te.Tensor, s: te.Tensor, *o: te.Tensor) -> te.Tensor:
        def element(b: Any, h: Any, t: Any, e: Any) -> Any:
            at = tirx.Cast("int64", t) - s(b)
            rest = tirx.const(0, dtype)
            if o:
                rest = (
                    o[0](b, h, t, e) if keys == room else tirx.if_then_else(t < room, o[0](b, h, t, e), rest)
                )
            return tirx.if_then_else(tirx.all(at >= 0, at < count), n(b, h, at, e), rest)

        return te.compute((n.shape[0], n.shape[1], keys, n.shape[3]), element, name="cache")

    return node.emit(node.bb.call_te(written, new, starts, *([old] if old is not None else [])))


def _rotary_embedding(node: Node) -> relax.Expr:
    """Convert input, position ids (one first position, or one for each element), and caches."""
    given, x, dims = node.attributes, node.tensor(0), node.shape(0)
    if len(dims) == 4:
        x = node.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    else:
        width = node.shape(2)[1] * 2
        heads = given["num_heads"] or dims[2] // width
        x = node.emit(relax.op.reshape(x, relax.ShapeExpr([dims[0], dims[1], heads, dims[2] // heads])))
    places = node.tensor(1)
    if len(node.shape(1)) == 1:
        places = node.emit(
            relax.op.add(positions(node, shape_of(x)[1], 0, 0), relax.op.reshape(places, [1, 1]))
        )
    cos, sin = (node.emit(relax.op.take(node.tensor(i), places, axis=0)) for i in (2, 3))
    y = rotated(node, x, cos, sin, bool(given["interleaved"]), given["rotary_embedding_dim"])
    if len(dims) == 4:
        return relax.op.permute_dims(y, [0, 2, 1, 3])
    return relax.op.reshape(y, relax.ShapeExpr(dims))


_MASKED = {"num_heads": ANY, "scale": ANY, "mask_filter_value": ANY, "unidirectional": ANY}
_MASKED_DEFAULTS = {"mask_filter_value": -10000.0, "unidirectional": 0}
_GROUPED_DEFAULTS = {
    "softcap": 0.0,
    "do_rotary": 0,
    "rotary_interleaved": 0,
    "local_window_size": -1,
    "smooth_softmax": -1,
    "qk_output": 0,
}

CONVERSIONS = {
    (DOMAIN, "Attention"): Conversion(
        _packed,
        {**_MASKED, "qkv_hidden_sizes": ANY, "do_rotary": (0,), "past_present_share_buffer": (0,)},
        defaults=_MASKED_DEFAULTS,
    ),
    (DOMAIN, "MultiHeadAttention"): Conversion(_multi_head, _MASKED, defaults=_MASKED_DEFAULTS),
    (DOMAIN, "GroupQueryAttention"): Conversion(
        _grouped,
        {
            **dict.fromkeys(
                ("num_heads", "kv_num_heads", "scale", "softcap", "do_rotary", "rotary_interleaved"), ANY
            ),
            "local_window_size": ANY,
            "smooth_softmax": (-1, 0),
            "qk_output": (0,),
        },
        defaults=_GROUPED_DEFAULTS,
    ),
    (DOMAIN, "RotaryEmbedding"): Conversion(
        _rotary_embedding,
        {
            **dict.fromkeys(("interleaved", "num_heads", "rotary_embedding_dim"), ANY),
            "is_packed_batching": (0,),
            "scale": (1.0,),
        },
        defaults={"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0},
    ),
}
