# SPDX-License-Identifier: Apache-2.0
"""The named workloads of :mod:`tvm_stitch.testing.workloads.cases` and ``grid_cases`` as Relay modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import tvm
from tvm import relay

from tvm_stitch.testing.workloads import cases as named
from tvm_stitch.testing.workloads import grid_cases as named_grid
from tvm_stitch.testing.workloads.case import Case
from tvm_stitch.testing.workloads.specs import Body, Spec

from . import ops

CaseType = TypeVar("CaseType", bound=Case)

#: Workloads that Relay has no operators for.
_NOT_IN_RELAY = frozenset({"batch_norm_training_nchw"})


def module(specs: Sequence[Spec], body: Body) -> tvm.IRModule:
    """Return the typed Relay module whose ``main`` computes ``body`` of ``specs``."""
    params = [relay.var(spec.name, shape=spec.shape, dtype=spec.dtype) for spec in specs]
    values: list[Any] = list(body(ops, *params))
    function = relay.Function(params, values[0] if len(values) == 1 else relay.Tuple(values))
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))


def in_relay(case: CaseType) -> CaseType:
    """Return the case with a ``build`` that makes its Relay module. ``stock_kernels`` is not recorded.

    Raises
    ------
    ValueError : for a case without a body, or one that Relay has no operators for.
    """
    body = case.body
    if body is None or case.name in _NOT_IN_RELAY:
        raise ValueError(f"{case.name} has no form in Relay")
    return replace(case, build=lambda: module(case.arguments, body), stock_kernels=None)


def cases(scale: str = "test") -> list[Case]:
    """Return ``tvm_stitch.testing.workloads.cases.cases(scale)`` in Relay, without the encoder layer.

    ``rms_norm_quantize`` is in float16: Relay-era TVMs have no bfloat16 ``abs`` and casts on llvm. The encoder is in
    :mod:`.encoder`.

    Raises
    ------
    ValueError : unknown scale.
    """
    rewritten = []
    for case in named.cases(scale):
        if case.name == "rms_norm_quantize":
            case = named.rms_norm_quantize(case.sizes["rows"], case.sizes["columns"], "float16")
        if case.body is not None:
            rewritten.append(in_relay(case))
    return rewritten


def grid_cases(scale: str = "test") -> list[named_grid.GridCase]:
    """Return ``tvm_stitch.testing.workloads.grid_cases.grid_cases(scale)``, as far as Relay can express them."""
    return [in_relay(case) for case in named_grid.grid_cases(scale) if case.name not in _NOT_IN_RELAY]
