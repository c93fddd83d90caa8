# SPDX-License-Identifier: Apache-2.0
"""PyTorch's loops: ``torch.while_loop`` and ``torch.scan``, whose steps are compiled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import relax
from tvm.relax import op as R

from ....relax.loops.loop import loop
from ....relax.loops.scan import scan
from ..core import Converter

Table = Callable[[], dict[str, Converter]]
"""Returns the converters of the operators that a loop's functions may call."""


def loop_converters(table: Table) -> dict[str, Converter]:
    """Return the converters of loops, by the names of PyTorch's operators."""
    return {"while_loop": partial(_while_loop, table), "scan": partial(_scan, table)}


def _while_loop(table: Table, node: Any, importer: Any) -> relax.Tuple:
    """(condition, body, states, unchanging values) -> the states for which the condition is false."""
    condition, body, carried, others = (*node.args, ())[:4]
    emit = importer.block_builder.emit
    states = _tensors(node, importer, carried)
    values = _tensors(node, importer, others)

    def goes_on(now: Sequence[Any], own: Sequence[Any]) -> Any:
        (flag,) = _converted(table, importer, importer.env[condition], [*now, *own])
        flag = flag if str(flag.ty.dtype.dtype) == "bool" else emit(R.astype(flag, "bool"))
        return flag if flag.ty.ndim == 0 else emit(R.reshape(flag, []))

    def step(_: Any, own: list[Any], state: list[Any]) -> list[Any]:
        after = _converted(table, importer, importer.env[body], [*state[1:], *own])
        return [goes_on(after, own), *after]

    done = loop(
        importer.block_builder,
        "while",
        None,
        [goes_on(states, values), *states],
        values,
        step,
        conditional=True,
    )
    return relax.Tuple(done[1:])


def _scan(table: Table, node: Any, importer: Any) -> relax.Tuple:
    """(step, first states, sequences, unchanging values) -> (last states, stacked results)."""
    body, first, sequences, others = (*node.args, ())[:4]
    states, rows, values = (_tensors(node, importer, each) for each in (first, sequences, others))
    count = rows[0].ty.shape.values[0]

    def step(_: Any, at: list[Any], own: list[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        made = _converted(table, importer, importer.env[body], [*state, *at, *own])
        return made[: len(states)], made[len(states) :]

    last, stacked = scan(importer.block_builder, "scan", count, states, rows, values, step)
    return relax.Tuple([*last, *stacked])


def _tensors(node: Any, importer: Any, given: Sequence[Any]) -> list[Any]:
    """Return the tensors of some arguments.

    Raises:
        ValueError: if one is no tensor.
    """
    found = []
    for each in given:
        value = importer.env.get(each) if hasattr(each, "op") else each
        if not isinstance(value, relax.Expr) or not isinstance(value.ty, relax.TensorType):
            raise ValueError(f"{node.name}: the argument {each} of a loop is no tensor; pass a tensor")
        found.append(value)
    return found


def _converted(table: Table, importer: Any, graph_module: Any, given: Sequence[Any]) -> list[Any]:
    """Convert the graph of a loop's function in the current block, and return its results."""
    places = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    # A step is converted in several places. Values of one place mean nothing in another.
    before = dict(importer.env)
    importer.env.update(zip(places, given, strict=True))
    try:
        results = _nodes(table, importer, graph_module)
    finally:
        importer.env.clear()
        importer.env.update(before)
    emit = importer.block_builder.emit
    return [each if isinstance(each, relax.Var) else emit(each) for each in results]


def _nodes(table: Table, importer: Any, graph_module: Any) -> list[Any]:
    # An importer of this package has these converters in its own table.
    custom = {} if hasattr(importer, "converters") else table()
    for node in graph_module.graph.nodes:
        if node.op == "get_attr":
            importer.env[node] = getattr(graph_module, node.target)
        elif node.op == "call_function":
            name = node.target.__name__
            if name in custom:
                importer.env[node] = custom[name](node, importer)
            elif name in importer.convert_map:
                importer.env[node] = importer.convert_map[name](node)
            else:
                raise ValueError(f"{node.name}: there is no converter for {name} in a loop")
        elif node.op == "output":
            (results,) = importer.retrieve_args(node)
            return list(results) if isinstance(results, (list, tuple, relax.Tuple)) else [results]
    raise ValueError("a loop's function returns nothing")
