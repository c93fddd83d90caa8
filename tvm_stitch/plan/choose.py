# SPDX-License-Identifier: Apache-2.0
"""Choose the kind of plan: one row domain, or phases of parts with grid barriers between them."""

from __future__ import annotations

from ..config import StitchConfig
from ..device import DeviceModel
from ..graph.ir import StitchGraph
from .alignment import Misaligned, align
from .grid import GridPlan, make_grid_plan
from .partition import partition, wants_partition
from .plan import StitchPlan, make_plan


def choose_plan(
    graph: StitchGraph, device: DeviceModel, config: StitchConfig | None = None
) -> StitchPlan | GridPlan:
    """Plan a graph for a device: on one row domain where that serves it well, else grid-wide.

    Raises:
        Misaligned: when no plan exists; the message is the reason that ``explain`` shows.
    """
    config = config or StitchConfig()
    if not may_cross_blocks(device, config):
        return make_plan(graph, device, config)
    if wants_partition(graph, device.sms):
        try:
            return make_grid_plan(graph, device, config.grid_barriers)
        except Misaligned:
            return make_plan(graph, device, config)
    try:
        return make_plan(graph, device, config)
    except Misaligned as err:
        try:
            return make_grid_plan(graph, device, config.grid_barriers)
        except Misaligned as grid:
            raise Misaligned(f"{err}; grid-wide: {grid}") from None


def check_plannable(graph: StitchGraph, device: DeviceModel | None, config: StitchConfig) -> None:
    """Find out, without making it, whether there is a plan.

    Raises:
        Misaligned: when there is none.
    """
    try:
        align(graph)
    except Misaligned as err:
        if device is None or not may_cross_blocks(device, config):
            raise
        try:
            partition(graph, device.sms)
        except Misaligned as grid:
            raise Misaligned(f"{err}; grid-wide: {grid}") from None


def may_cross_blocks(device: DeviceModel, config: StitchConfig) -> bool:
    """May values of one kernel cross blocks through device memory?"""
    return device.is_gpu and device.cooperative and config.grid_barriers
