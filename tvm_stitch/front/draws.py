# SPDX-License-Identifier: Apache-2.0
"""Random numbers of a graph as further arguments: PyTorch draws them before each call, in the order of the graph.

A compiled function has no generator of random numbers. So a graph with a dropout gets the mask as an argument. Masks
are drawn as PyTorch's own dropout draws them, so a seed gives the results that it gives without this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_ATEN = torch.ops.aten
_LIKE = (_ATEN.rand_like.default, _ATEN.randn_like.default, _ATEN.randint_like.default)
_FREE = (
    _ATEN.rand.default,
    _ATEN.randn.default,
    _ATEN.randint.default,
    _ATEN.randint.low,
    _ATEN.randperm.default,
)
_DROPOUT = _ATEN.native_dropout.default


@dataclass(frozen=True)
class Draws:
    """The random numbers of a graph. A call with the graph's own arguments draws them.

    Attributes:
        drawn: for each further argument a function of the values of symbols, which draws it.
        symbols: the symbols of sizes, by the numbers of the arguments that are their values.
    """

    drawn: Sequence[Callable[[dict[Any, int]], torch.Tensor]]
    symbols: dict[int, Any]

    def __call__(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Return the further arguments of a call."""
        sizes = {symbol: int(args[number]) for number, symbol in self.symbols.items()}
        with torch.no_grad():
            return [draw(sizes) for draw in self.drawn]


def with_drawn_arguments(graph: torch.fx.GraphModule) -> Draws | None:
    """Give a graph of PyTorch's core operators its random numbers as further arguments.

    Operators whose random numbers depend on values of the graph remain in it.

    Args:
        graph: the graph, which is changed.

    Returns:
        The draws of the arguments, or None if the graph stays as it was.
    """
    nodes = list(graph.graph.nodes)
    places = [node for node in nodes if node.op == "placeholder"]
    drawing = [(node, draw) for node in nodes for draw in _draws_of(node)]
    if not drawing or not places:
        return None
    symbols = {number: node.meta["val"].node.expr for number, node in enumerate(places) if _is_size(node)}
    last = places[-1]
    for number, (node, _) in enumerate(drawing):
        with graph.graph.inserting_after(last):
            last = graph.graph.placeholder(f"drawn_{number}")
        if node.target is _DROPOUT:
            _drop(graph, node, last)
        else:
            last.meta.update(node.meta)
            node.replace_all_uses_with(last)
            graph.graph.erase_node(node)
    graph.graph.lint()
    graph.recompile()
    return Draws([draw for _, draw in drawing], symbols)


def _drop(graph: torch.fx.GraphModule, node: torch.fx.Node, mask: torch.fx.Node) -> None:
    """Replace a dropout by products with a mask, in PyTorch's order."""
    x, probability = node.args[0], float(node.args[1])
    with graph.graph.inserting_before(node):
        kept = graph.graph.call_function(_ATEN.mul.Tensor, (x, mask))
        scaled = graph.graph.call_function(
            _ATEN.mul.Scalar, (kept, 1 / (1 - probability) if probability < 1 else 0.0)
        )
    value, drawn = node.meta["val"]
    mask.meta["val"] = drawn
    kept.meta["val"] = scaled.meta["val"] = value
    for user in list(node.users):
        user.replace_all_uses_with(mask if user.args[1] else scaled)
        graph.graph.erase_node(user)
    graph.graph.erase_node(node)


def _draws_of(node: torch.fx.Node) -> Iterator[Callable[[dict[Any, int]], torch.Tensor]]:
    """Yield a function that draws the random numbers of a node, if they depend on no values."""
    if node.op != "call_function":
        return
    target: Any = node.target
    if target is _DROPOUT and node.args[2] is not False:
        value, probability = node.meta["val"][0], float(node.args[1])
        yield lambda sizes: _empty(value, sizes, torch.bool).bernoulli_(1 - probability)
    elif target in _LIKE:
        first: Any = node.args[0]
        like, rest, named = first.meta["val"], node.args[1:], dict(node.kwargs)
        yield lambda sizes: target(_empty(like, sizes, like.dtype), *rest, **named)
    elif target in _FREE and not node.all_input_nodes:  # of sizes that are numbers
        args, options = node.args, dict(node.kwargs)
        yield lambda sizes: target(*args, **options)


def _empty(value: torch.Tensor, sizes: dict[Any, int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of a traced value's shape, for values of symbols."""
    shape = [
        int(size.node.expr.subs(sizes)) if isinstance(size, torch.SymInt) else int(size)
        for size in value.shape
    ]
    return torch.empty(shape, dtype=dtype, device=value.device)


def _is_size(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt) and value.node.expr.is_symbol
