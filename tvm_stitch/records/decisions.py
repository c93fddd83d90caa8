# SPDX-License-Identifier: Apache-2.0
"""Decisions: what passes decide about a module, carried by the module as an attribute.

A pass returns its module with more decisions (:func:`decided`). A module that came before still has its own, so going
back to it takes the later decisions back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import tvm

from ..compat.attributes import carried, carried_value
from ..plan.kernel import KernelPlan
from ..report.flow import Flow
from ..scope.identified import Boundary
from ..support.resilient import Reasons

ATTRIBUTE = "tvm_stitch.decisions"


@dataclass(frozen=True)
class Decisions:
    """The decisions about a module.

    Attributes:
        excluded: the scopes to leave to TVM, with the reasons that reports show.
        outlined: by function, the name of its scope among those to exclude.
        plans: by function, its plan.
        declined: by function, why it could not be scheduled.
        left: by operator, why no scope takes it.
        computed: by compute-intensive operator, what computes it, and why.
        boundaries: the boundaries between kernels.
        flows: the blocks that scopes were identified in, if their values have names.
    """

    excluded: Mapping[str, Reasons] = field(default_factory=dict)
    outlined: Mapping[str, str] = field(default_factory=dict)
    plans: Mapping[str, KernelPlan] = field(default_factory=dict)
    declined: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    computed: Mapping[str, str] = field(default_factory=dict)
    boundaries: tuple[Boundary, ...] = ()
    flows: tuple[Flow, ...] = ()

    def names(self) -> dict[str, str]:
        """Return the functions of the outlined scopes by the scopes' names."""
        return {scope: name for name, scope in self.outlined.items()}

    def refused(self) -> dict[str, str]:
        """Return by name what is left to TVM, with the reasons. Names that are taken get a number."""
        refusals: dict[str, str] = {}
        for reasons in self.excluded.values():
            add_all(refusals, reasons)
        add_all(refusals, self.left.items())
        return refusals


def decisions_of(mod: tvm.IRModule) -> Decisions:
    """Return the decisions about a module."""
    attribute = mod.attrs[ATTRIBUTE] if mod.attrs is not None and ATTRIBUTE in mod.attrs else None
    decisions = carried_value(attribute) if attribute is not None else None
    return decisions if decisions is not None else Decisions()


def decided(mod: tvm.IRModule, **more: Any) -> tvm.IRModule:
    """Return the module with more decisions.

    Args:
        mod: any module.
        more: fields of :class:`Decisions`. Mappings are merged with what is there, others are added behind it.
    """
    more = {name: value for name, value in more.items() if value}
    if not more:
        return mod
    known = decisions_of(mod)
    for each in fields(Decisions):
        if each.name in more:
            before, value = getattr(known, each.name), more[each.name]
            more[each.name] = {**before, **value} if isinstance(value, Mapping) else (*before, *value)
    return mod.with_attr(ATTRIBUTE, carried(replace(known, **more)))


def with_plans_of(mod: tvm.IRModule, names: Mapping[str, str]) -> tvm.IRModule:
    """Return the module with the plans of functions given to functions that took their place.

    Args:
        mod: a module with all of these functions that are still called.
        names: by new function, the one before. The plan of one before is dropped if the module does not have it.
    """
    known = decisions_of(mod)
    there = {str(gvar.name_hint) for gvar in mod.get_global_vars()}
    plans = {name: plan for name, plan in known.plans.items() if name in there or name not in names.values()}
    plans |= {name: known.plans[before] for name, before in names.items() if before in known.plans}
    return mod.with_attr(ATTRIBUTE, carried(replace(known, plans=plans)))


def without_decisions(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module without the attribute."""
    return mod.without_attr(ATTRIBUTE) if mod.attrs is not None and ATTRIBUTE in mod.attrs else mod


def add_all(known: dict[str, Any], more: Iterable[tuple[str, Any]]) -> None:
    """Add entries under their names. A name already in use gets a number, so that no entry replaces another."""
    for name, value in more:
        known[fresh(name, known)] = value


def fresh(name: str, taken: Any, numbered: str = "{} ({})") -> str:
    """Return the name, with a number in the form of ``numbered`` if it is taken."""
    number, fresh_name = 1, name
    while fresh_name in taken:
        number += 1
        fresh_name = numbered.format(name, number)
    return fresh_name
