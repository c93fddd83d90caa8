# SPDX-License-Identifier: Apache-2.0
"""Which calls of a Relay module templates of ours compute: a rule that is known before anything is emitted.

Templates stand back where the option, the context or the target asks for a tuner or a library, for the whole build;
``compute="templates"`` overrules. TopHub's records, which TVM opens by itself around every build, are not asked for.
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
from ...graph.ir import StitchGraph
from ...support.failures import Refusal
from ..lower import GENERIC, OpReader, short_name

TUNERS = {
    "relay.backend.use_auto_scheduler": "Ansor's",
    "relay.backend.use_meta_schedule": "MetaSchedule's",
}
"""Options of a pass context that ask for a tuner's schedules, and whose these are."""

FEW_PLACES, LARGE_WEIGHT = 64, 1 << 20
"""Places of an image's windows, and elements of a weight that no second-level cache holds: of fewer with a larger one
TVM's convolution is faster (7x7 places, 512 channels: 60 against 45 GFLOP/s; 14x14, 256 channels: 75 against 94)."""

TOPHUB = "tvm_stitch_tophub"
"""Attribute of the contexts with AutoTVM's records that TVM itself opens around every build."""


def asked_instead(target: Any, config: StitchConfig) -> str:
    """What the user's own request has compute products and convolutions in the place of templates; "" for nothing.

    A tuner's schedules are asked for by the options of the current pass context, or by a context with AutoTVM's records
    that is open; a library by the target. ``compute="templates"`` says that templates come first all the same.
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
    """Knows the calls of a module that templates compute.

    Attributes:
        served: what those calls compute, as graphs of their own.
        altered: for operators of which TVM chose another layout, why no template serves them.
    """

    def __init__(self, target: Any, config: StitchConfig):
        self.instead, self.config = asked_instead(target, config), config
        self.altered: dict[str, list[str]] = {}
        self.served: set[StitchGraph] = set()
        # Definitions as schedules for CPUs want them have operands packed within the operator.
        self._plain = OpReader(tvm.target.Target(GENERIC))

    def graph(self, call: Any, inputs: Sequence[Any], args: Sequence[Any]) -> StitchGraph:
        """What a call computes that a template serves; the arguments are those of :meth:`OpReader.graph`.

        Raises:
            Refusal: when none serves it, or something else was asked for.
        """
        for name, reasons in self.altered.items():
            if short_name(call.op.name).startswith(f"contrib_{name}"):
                raise Refusal("; ".join(reasons))
        constant = [isinstance(value, relay.Constant) for value in inputs]
        return self._checked(self._plain.graph(call, inputs, args), constant)

    def of_function(self, func: Any, name: str, constant: Sequence[bool]) -> StitchGraph:
        """What a function of one operator, so named, computes that a template serves, if some arguments are constants.

        Raises:
            Refusal: when none serves it, or something else was asked for.
        """
        return self._checked(self._plain.of_function(func, name), constant)

    def _checked(self, graph: StitchGraph, constant: Sequence[bool]) -> StitchGraph:
        found = anchor_of(graph)
        if self.instead:
            raise Refusal(self.instead)
        if found.kind in self.config.of_tvm:
            raise Refusal("TVM's schedules are asked for")
        if found.dtypes != {"float32"}:
            raise Refusal("only float32 has a template")
        _check_places(found)
        if isinstance(found.product, Convolution) and not constant[graph.inputs.index(found.weight)]:
            raise Refusal("the weight of the convolution is no constant: bind it by params")
        self.served.add(graph)
        return graph

    def alter(self, name: str, reason: str) -> None:
        """TVM chooses another layout for an operator, since no template serves it."""
        reasons = self.altered.setdefault(name, [])
        if reason not in reasons:
            reasons.append(reason)

    def serves(self, graph: StitchGraph) -> bool:
        """Is a graph one of those that :meth:`graph` gave?"""
        return graph in self.served


def _check_places(found: Anchored) -> None:
    """Refuse a convolution that reads a large weight for a few places."""
    product = found.product
    if not isinstance(product, Convolution) or product.is_depthwise:
        return
    places = math.prod(window.outputs for window in product.windows)
    if places < FEW_PLACES and product.depth * product.columns > LARGE_WEIGHT:
        raise Refusal(f"a weight of {product.depth} x {product.columns} for {places} places")
