# SPDX-License-Identifier: Apache-2.0
"""Layouts as templates take them, where Relay's pass AlterOpLayout asks TOPI for those of its schedules.

At ``opt_level=3`` that pass replaces a product by one of a packed weight, and a convolution by one of blocked channels.
Inside this context it leaves the products to templates that these serve, and puts the channels of such convolutions
innermost; what is between them follows, as it does for TOPI's layouts.

A product is read by its plain definition: TOPI's for x86 packs operands within the operator, and before
``PlanDevices`` ``AlterOpLayout`` packs weights in TOPI's layout. Its rules for dense and conv2d are asked after ours,
which leave a dense as it is, and make a convolution one with the channels innermost. A weight that TVM had packed
could be unpacked again, but the layout (``NC16n`` and the like) divides the columns, and panels are of other widths.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm import autotvm, relay, topi

from ...support.failures import Refusal, reason_of
from ...support.interrupts import carrying
from ..global_function import replaced
from ..shared_context import SharedContext
from .choice import TOPHUB, Templates


class _Current(threading.local):
    """What decides in this thread."""

    def __init__(self) -> None:
        self.templates: Templates | None = None


_current = _Current()


@contextmanager
def template_layouts(templates: Templates | None) -> Iterator[None]:
    """While this lasts, AlterOpLayout in this thread leaves to templates what they serve; with None it is TVM's own."""
    with replaced(_current, templates=templates), _rules.shared():
        yield


@contextmanager
def tophub_marked() -> Iterator[None]:
    """While this lasts, contexts with AutoTVM's records that TVM opens by itself are marked as such."""
    before = autotvm.tophub.context

    @functools.wraps(before)
    def context(*args: Any, **kwargs: Any) -> Any:
        made = before(*args, **kwargs)
        setattr(made, TOPHUB, True)
        return made

    with replaced(autotvm.tophub, context=context):
        yield


@contextmanager
def _rules_replaced() -> Iterator[None]:
    dense = _first("dense", _dense, topi.nn.dense_alter_layout)
    conv2d = _first("conv2d", _conv2d, topi.nn.conv2d_alter_layout)
    with replaced(topi.nn, dense_alter_layout=dense, conv2d_alter_layout=conv2d):
        yield


_rules = SharedContext(_rules_replaced)

Rule = Callable[[Templates, Any, Any, Any], Any]


def _first(name: str, ours: Rule, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """TVM's rule behind ours, which raises Refusal for what no template serves."""

    @functools.wraps(theirs)
    @carrying
    def rule(attrs: Any, inputs: Any, tinfos: Any, out_type: Any) -> Any:
        if _current.templates is not None:
            try:
                return ours(_current.templates, attrs, inputs, tinfos)
            except Exception as err:  # whatever an operator's definition does, the model compiles without us
                _current.templates.alter(name, reason_of(err, name, quiet=True))
        return theirs(attrs, inputs, tinfos, out_type)

    return rule


def _dense(templates: Templates, attrs: Any, inputs: Any, tinfos: Any) -> None:
    """No other layout, for a product that a template serves."""
    data, weight = (relay.Var(f"p{i}", relay.TensorType(t.shape, t.dtype)) for i, t in enumerate(tinfos))
    product = relay.nn.dense(data, weight, attrs["units"], str(attrs["out_dtype"]))
    templates.of_function(relay.Function([data, weight], product), "dense", _constants(inputs))


def _conv2d(templates: Templates, attrs: Any, inputs: Any, tinfos: Any) -> Any:
    """Return a convolution with the channels innermost, for one that a template serves then."""
    options = {key: attrs[key] for key in attrs.keys()}
    layouts = [str(options[key]) for key in ("data_layout", "kernel_layout", "out_layout")]
    if layouts not in (["NCHW", "OIHW", ""], ["NCHW", "OIHW", "NCHW"]):
        raise Refusal("a layout of its own")
    images, weight = ([int(extent) for extent in info.shape] for info in tinfos)
    groups = int(options["groups"])
    order = "HWOI" if groups == images[1] == weight[0] else "HWIO"
    options |= {
        "data_layout": "NHWC",
        "kernel_layout": order,
        "out_layout": "",
        "channels": weight[0],
        "kernel_size": weight[2:],
    }
    sizes = dict(zip("OIHW", weight))
    params = [
        relay.Var("data", relay.TensorType([images[axis] for axis in (0, 2, 3, 1)], tinfos[0].dtype)),
        relay.Var("weight", relay.TensorType([sizes[axis] for axis in order], tinfos[1].dtype)),
    ]
    moved = relay.Function(params, relay.nn.conv2d(*params, **options))
    templates.of_function(moved, "conv2d", _constants(inputs))
    return relay.nn.conv2d(*inputs, **options)


def _constants(inputs: Any) -> list[bool]:
    """Of arguments, whether folding makes a constant of each."""
    return [not relay.analysis.free_vars(argument) for argument in inputs]
