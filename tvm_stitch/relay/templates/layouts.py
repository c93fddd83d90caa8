# SPDX-License-Identifier: Apache-2.0
"""Layouts for templates, in place of those that Relay's pass AlterOpLayout takes from TOPI's schedules.

At ``opt_level=3`` that pass replaces a product by one of a packed weight, and a convolution by one of blocked
channels. In this context, products that templates serve stay, and convolutions that they serve get their channels
innermost. The operators in between follow, as they do for TOPI's layouts.

A product is read by its plain definition, because TOPI's definition for x86 packs operands within the operator.
``AlterOpLayout`` runs before ``PlanDevices`` and packs weights in TOPI's layout. The rules here come before its
rules for dense and conv2d. They keep a dense, and put the channels of a convolution innermost. A weight packed by
TVM could be unpacked again. But its layout (``NC16n`` and the like) divides the columns, and panels have other
widths.
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
    """The templates that decide in this thread."""

    def __init__(self) -> None:
        self.templates: Templates | None = None


_current = _Current()


@contextmanager
def template_layouts(templates: Templates | None) -> Iterator[None]:
    """Let AlterOpLayout keep the operators that templates serve, in this thread and context. None restores TVM's
    behaviour.
    """
    with replaced(_current, templates=templates), _rules.shared():
        yield


@contextmanager
def tophub_marked() -> Iterator[None]:
    """Mark the contexts with AutoTVM's records that TVM opens by itself."""
    before = autotvm.tophub.context

    @functools.wraps(before)
    def context(*args: Any, **kwargs: Any) -> Any:
        opened = before(*args, **kwargs)
        setattr(opened, TOPHUB, True)
        return opened

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
    """Return a rule that tries ``ours``, and TVM's rule if ``ours`` raises a Refusal."""

    @functools.wraps(theirs)
    @carrying
    def rule(attrs: Any, inputs: Any, tinfos: Any, out_type: Any) -> Any:
        if _current.templates is not None:
            try:
                return ours(_current.templates, attrs, inputs, tinfos)
            except Exception as err:  # whatever an operator's definition does, the model must compile
                _current.templates.alter(name, reason_of(err, name, quiet=True))
        return theirs(attrs, inputs, tinfos, out_type)

    return rule


def _dense(templates: Templates, attrs: Any, inputs: Any, tinfos: Any) -> None:
    """Keep the layout of a product that a template serves. Raise a Refusal for others."""
    data, weight = (relay.Var(f"p{i}", relay.TensorType(t.shape, t.dtype)) for i, t in enumerate(tinfos))
    product = relay.nn.dense(data, weight, attrs["units"], str(attrs["out_dtype"]))
    templates.of_function(relay.Function([data, weight], product), "dense", _constants(inputs))


def _conv2d(templates: Templates, attrs: Any, inputs: Any, tinfos: Any) -> Any:
    """Return a convolution with the channels innermost, if a template serves it then."""
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
    """Return for each argument whether folding turns it into a constant."""
    return [not relay.analysis.free_vars(argument) for argument in inputs]
