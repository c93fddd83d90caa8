# SPDX-License-Identifier: Apache-2.0
"""The kind of each kernel, and the note about what computes it, or why no stitch op took it.

A decision is about a value or a function. It belongs to a kernel that writes the value, and then to one that computes
the value on its way. The kernel must also be of the decision's kind: the name of its function, or of the value's call,
says so. All calls of one function of the module have one kind and one note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ...report.data import Kind, SourceOperator
from ...report.flow import FlowNode
from ..rewriting.marked_names import whole_of
from ..stitch.dataflow import LIBRARY, OWN
from .kernel_calls import Call

COMPUTE = "compute-intensive"

PRODUCTS = ("matmul", "einsum", "dense")
CONVOLUTIONS = ("conv",)
WORDS: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention",),
    "matmul": PRODUCTS,
    "conv": CONVOLUTIONS,
    "topk": ("topk",),
    "fourier transform": ("fourier",),
    "recurrent layer": ("_kernel",),
    "": (*PRODUCTS, *CONVOLUTIONS),
}
"""By the kind of a decision, words of which one is in the names of functions that compute it. The kinds of
convolutions begin alike. The last entry is for decisions about values that are products or convolutions.
"""
IN_PIECES = ("its products and softmax", "matmuls:")
"""The beginnings of decisions after which products compute the value."""

_Tiers = list[list[str]]


def kinds_of(calls: Sequence[Call], stitched: Iterable[str]) -> list[Kind]:
    """Return the kind of each call, which depends on its function alone. ``stitched`` names those that have a plan."""
    planned = frozenset(stitched)

    def kind(call: Call) -> Kind:
        if call.external:
            return "library"
        if call.function in planned:
            return "stitched"
        return "compute" if call.marked or call.contracts else "tvm"

    return [kind(call) for call in calls]


class Notes:
    """The notes of a module's kernels.

    Args:
        computed: the recorded implementations, by the names of values and functions, or by numbers of operators.
        left: by call, why no stitch op took it.
    """

    def __init__(self, computed: Mapping[str, str], left: Mapping[str, str]):
        self.left = left
        self.functions = computed
        self.of_value: dict[str, list[tuple[str, str]]] = {}
        self.of_all: list[tuple[str, str]] = []
        for key, how in computed.items():
            kind, _, name = key.rpartition(" ")
            self.of_value.setdefault(name, []).append((kind, how))
            if many := re.fullmatch(r"\d+ (\w+?)s?", key):
                self.of_all.append((many[1][:4], how))

    def of_calls(
        self,
        calls: Sequence[Call],
        kinds: Sequence[Kind],
        nodes: Sequence[Sequence[FlowNode]],
        members: Sequence[Sequence[SourceOperator]],
    ) -> list[str]:
        """Return the note of each call.

        Args:
            calls: the calls of kernels.
            kinds: the kind of each.
            nodes: the nodes of flows in each.
            members: the operators of the model that each computes.
        """
        tiers = [self._tiers(*each) for each in zip(calls, kinds, nodes, members)]
        together: dict[object, list[int]] = {}
        for i, call in enumerate(calls):
            # A library's function computes different operators: its calls are not equal.
            together.setdefault(i if call.external else call.function, []).append(i)
        notes = [""] * len(calls)
        for same in together.values():
            note = _first([[text for i in same for text in tiers[i][t]] for t in range(len(tiers[same[0]]))])
            for i in same:
                notes[i] = note
        return notes

    def _tiers(
        self, call: Call, kind: Kind, nodes: Sequence[FlowNode], members: Sequence[SourceOperator]
    ) -> _Tiers:
        """Return the notes that a call may have, the surest first."""
        if kind == "stitched":
            return [[]]
        if kind == "tvm":
            reasons = (node.reason or self.left.get(node.function, "") for node in nodes)
            return [[reason for reason in reasons if reason not in ("", OWN, LIBRARY, COMPUTE)]]
        of_function = [
            self.functions[name]
            for name in (call.function, call.function.removesuffix("_tiled"))
            if name in self.functions
        ]
        written = [v.name for v in call.results]
        functions = {v: node.function for node in nodes for v in node.values}

        def about(names: Iterable[str]) -> list[str]:
            found = (self._about(name, call, functions.get(name, "")) for name in names)
            return next(([note] for note in found if note), [])

        return [
            of_function[:1],
            about([*written, *map(whole_of, written)]),
            about(v for node in reversed(nodes) for v in node.values),
            about(member.name for member in reversed(members)),
            ["our kernel"] if call.marked else self._general(call, nodes),
            ["TVM" if kind == "compute" else "a function outside the module"],
        ]

    def _about(self, name: str, call: Call, function: str) -> str:
        """Return the decision about a value that a call computes, or "". ``function`` computes the value alone."""
        suitable = [
            (kind, how)
            for kind, how in self.of_value.get(name, ())
            if suits(kind, how, call.function) or (suits(kind, how, function) and not call.marked)
        ]
        # In attention that is left in pieces, the note of the matmul itself comes first.
        return min(suitable, key=lambda each: each[0] == "attention", default=("", ""))[1]

    def _general(self, call: Call, nodes: Sequence[FlowNode]) -> list[str]:
        """Return the decision about all operators of a kind, such as ``12 matmuls``, of which a call computes one."""
        names = [call.function, *(node.function for node in nodes if node.kind == COMPUTE)]
        return next(([how] for name in names for word, how in self.of_all if word in name), [])


def suits(kind: str, how: str, function: str) -> bool:
    """Return whether a function may compute a value by the implementation that a decision of some kind records."""
    if how.startswith(IN_PIECES):
        return any(word in function for word in PRODUCTS)
    words = WORDS.get("conv" if kind.startswith("conv") else kind, ())
    return any(word in function for word in words)


def _first(tiers: _Tiers) -> str:
    """Return the different texts of the first tier that has any, in one text."""
    return "; ".join(dict.fromkeys(next((texts for texts in tiers if texts), [])))
