# SPDX-License-Identifier: Apache-2.0
"""The error for PyTorch programs that are not imported, and the texts that name their operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ....graph.extent import as_plain_text

__all__ = ["OutOfRange", "Unsupported", "name_of", "path_of"]


class Unsupported(ValueError):
    """A PyTorch program has an operator that is not imported. The text names it, with the reason."""

    def __init__(self, reasons: Iterable[tuple[str, str]]):
        """Make the error of some operators.

        Args:
            reasons: an operator with the node that calls it, and the reason why it is refused.
        """
        self.reasons = tuple(dict.fromkeys((operator, as_plain_text(reason)) for operator, reason in reasons))
        super().__init__("; ".join(f"{operator}: {reason}" for operator, reason in self.reasons))

    @classmethod
    def at(cls, node: Any, reason: str) -> Unsupported:
        """Return the error for one node of PyTorch's graph."""
        return cls([(described(node), reason)])


class OutOfRange(ValueError):
    """A constant index lies outside of an axis. The importer adds the node."""


def name_of(node: Any) -> str:
    """Return the name of the operator that a node calls: ``add.Tensor``, or with a namespace that is not ATen's."""
    target = node.target
    name = str(getattr(target, "__name__", target))
    namespace = getattr(target, "namespace", "aten")
    return name if namespace in ("aten", "higher_order", "prim", "prims") else f"{namespace}::{name}"


def path_of(node: Any) -> str:
    """Return the path of the innermost module that a node of PyTorch's graph comes from, or an empty string."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]).removeprefix("L['self']").strip(".") if stack else ""


def described(node: Any) -> str:
    """Return the operator's name with the node and the module that it is in."""
    place = f"{path_of(node)}/{node.name}" if path_of(node) else str(node.name)
    return f"{name_of(node)} ({place})"
