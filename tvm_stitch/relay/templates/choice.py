# SPDX-License-Identifier: Apache-2.0
"""Select the calls of a Relay module that templates compute, before anything is emitted.

If an option, the context or the target requests a tuner or a library, no template is used in the whole build.
``compute="templates"`` overrides this. TopHub's records, which TVM opens automatically around every build, do not
count as a request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import autotvm, relay

from ...compute.anchored import Anchored, anchor_of
from ...compute.convolution import Convolution
from ...config import StitchConfig
from ...cost.choices import Choices
from ...device import device_model
from ...graph.ir import StitchGraph
from ...support.failures import Refusal
from ..lower import GENERIC, OpReader, short_name

TUNERS = {
    "relay.backend.use_auto_scheduler": "Ansor's",
    "relay.backend.use_meta_schedule": "MetaSchedule's",
}
"""Options of a pass context that request a tuner's schedules, with the tuner."""

TOPHUB = "tvm_stitch_tophub"
"""Attribute that marks the contexts with AutoTVM's records that TVM itself opens around every build."""


def asked_instead(target: tvm.target.Target, config: StitchConfig) -> str:
    """Return the user's request that replaces templates for products and convolutions, or "".

    The options of the current pass context, or an open context with AutoTVM's records, request a tuner's schedules.
    The target requests a library. ``compute="templates"`` gives templates the priority.
    """
    if config.compute_of("matmul") == config.compute_of("convolution") == "templates":
        return ""
    options = tvm.transform.PassContext.current().config
    for option, whose in TUNERS.items():
        if option in options and options[option]:
            return f"{whose} schedules are asked for"
    records = autotvm.DispatchContext.current
    if not isinstance(records, (autotvm.FallbackContext, type(None))) and not hasattr(records, TOPHUB):
        return "AutoTVM's schedules are asked for"
    libraries = list(map(str, target.attrs.get("libs") or []))
    return f"the target asks for {', '.join(libraries)}" if libraries else ""


class Templates:
    """The calls of a module that templates compute.

    Attributes:
        served: the graphs of those calls.
        altered: for operators whose layout TVM changed, the reasons why no template serves them.
    """

    def __init__(self, target: tvm.target.Target, config: StitchConfig):
        self.instead, self.config = asked_instead(target, config), config
        self.choices = device_model(target, config).choices
        self.altered: dict[str, list[str]] = {}
        self.served: set[StitchGraph] = set()
        # The definitions selected for CPUs pack operands within the operator.
        self._plain = OpReader(tvm.target.Target(GENERIC))

    def graph(self, call: Any, inputs: Sequence[Any], args: Sequence[Any]) -> StitchGraph:
        """Return the graph of a call that a template serves. The arguments are those of :meth:`OpReader.graph`.

        Raises:
            Refusal: if no template serves it, or something else was requested.
        """
        for name, reasons in self.altered.items():
            if short_name(call.op.name).startswith(f"contrib_{name}"):
                raise Refusal("; ".join(reasons))
        constant = [isinstance(value, relay.Constant) for value in inputs]
        return self._checked(self._plain.graph(call, inputs, args), constant)

    def of_function(self, func: Any, name: str, constant: Sequence[bool]) -> StitchGraph:
        """Return the graph of a function of one operator, if a template serves it. ``constant`` marks constant
        arguments.

        Raises:
            Refusal: if no template serves it, or something else was requested.
        """
        return self._checked(self._plain.of_function(func, name), constant)

    def _checked(self, graph: StitchGraph, constant: Sequence[bool]) -> StitchGraph:
        anchor = anchor_of(graph)
        if self.instead:
            raise Refusal(self.instead)
        if anchor.kind in self.config.of_tvm:
            raise Refusal("TVM's schedules are asked for")
        if anchor.dtypes != {"float32"}:
            raise Refusal("only float32 has a template")
        _check_positions(anchor, self.choices)
        if isinstance(anchor.product, Convolution) and not constant[graph.inputs.index(anchor.weight)]:
            raise Refusal("the weight of the convolution is not a constant: bind it by params")
        self.served.add(graph)
        return graph

    def alter(self, name: str, reason: str) -> None:
        """Record that TVM changes the layout of an operator, because no template serves it."""
        reasons = self.altered.setdefault(name, [])
        if reason not in reasons:
            reasons.append(reason)

    def serves(self, graph: StitchGraph) -> bool:
        """Return whether :meth:`graph` returned this graph."""
        return graph in self.served


def _check_positions(anchor: Anchored, choices: Choices) -> None:
    """Raise a Refusal for a convolution that reads a large weight for few positions."""
    product = anchor.product
    if not isinstance(product, Convolution) or product.is_depthwise:
        return
    positions = math.prod(window.outputs for window in product.windows)
    if positions < choices.few_positions and product.reduction * product.columns > choices.large_weight:
        raise Refusal(f"a weight of {product.reduction} x {product.columns} for {positions} positions")
