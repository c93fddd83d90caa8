# SPDX-License-Identifier: Apache-2.0
"""Choose the kind of plan: one row domain, or phases of stages with grid barriers between them.

Where grid barriers are not to be had, the phases become kernels, one after the other: the same plan without the
barrier. Against stitch ops that end where rows would cross, it has about as many launches, but a value is read once for
all that a phase makes of it (half the traffic for the gradients of layer norm), and sums across rows are read row by
row, on all blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..config import StitchConfig
from ..device import DeviceModel
from ..graph.extent import same
from ..graph.ir import StitchGraph
from ..graph.sizes import static_size
from .gpu.grid import grid_partition, map_partition
from .gpu.orientation import wants_partition
from .gpu.partition import Partition
from .gpu.variants import busy
from .in_block import plan_in_block
from .iteration.alignment import Alignment, Misaligned, align
from .kernel import KernelPlan
from .memory import traffic
from .verify import verified


def choose_plan(
    graph: StitchGraph,
    device: DeviceModel,
    config: StitchConfig | None = None,
    preferred: Collection[str] = (),
) -> KernelPlan:
    """Plan a graph for a device, as :func:`choose` says, and verify the plan.

    A grid-wide plan has grid barriers if the device can launch cooperatively and the configuration allows them; else
    it is the same plan without the barrier, of a kernel for each phase, with no stage evaluated by every block.

    ``preferred`` names operators to choose as the dominants of their groups. The mapping is then propagated from them
    if it serves all operators. By default the planner chooses all dominants.

    Raises:
        Misaligned: when no plan exists; the message is the reason that ``explain`` shows.
        WrongPlan: when the planner made one that no kernel may be made of, which is a fault.
    """
    config = config or StitchConfig()
    device = device.configured(config)
    found = choose(graph, device, config, preferred) if device.is_gpu else None
    if isinstance(found, Partition):
        return verified(map_partition(found, device, config.grid_barriers))
    return verified(plan_in_block(graph, device, config, preferred))


def choose(
    graph: StitchGraph, device: DeviceModel, config: StitchConfig, preferred: Collection[str] = ()
) -> Alignment | Partition:
    """What a graph is on a GPU, for fusion and for the plan: rows of one domain, or phases of stages.

    Rows come first unless they would lie across memory. One long row which its blocks cannot share or keep is given up
    for phases. ``preferred`` names operators to choose as dominants.

    Raises:
        Misaligned: when neither serves it, with the reasons of both.
    """
    device = device.configured(config)
    phases_first = wants_partition(graph, device)
    ways: list[Callable[[], Alignment | Partition]] = [
        lambda: busy(align(graph, device.choices, preferred=preferred), device),
        lambda: grid_partition(graph, device, config.grid_barriers, preferred),
    ]
    first, second = reversed(ways) if phases_first else ways
    try:
        found = first()
    except Misaligned as err:
        reasons = [str(err)]
        try:
            return second()
        except Misaligned as other:
            reasons.append(str(other))
        row, grid = reversed(reasons) if phases_first else reasons
        raise Misaligned(f"{row}; grid-wide: {grid}") from None
    if isinstance(found, Partition) or found.domain.flat or not same(found.domain.rows, 1):
        return found
    return _phases_of_a_row(graph, device, config, preferred) or found


def _phases_of_a_row(
    graph: StitchGraph, device: DeviceModel, config: StitchConfig, preferred: Collection[str]
) -> Partition | None:
    """Phases for a graph of one row, where its plan leaves the device idle or reads again and they do better."""
    plan = plan_in_block(graph, device, config, preferred)
    idle = _leaves_device_idle(plan)
    if not idle and not _reads_again(plan):
        return None
    try:
        found = grid_partition(graph, device, config.grid_barriers, preferred)
    except Misaligned:
        return None
    fewer = (1 - device.choices.phases_gain) * _bytes(plan)
    return found if idle or _bytes(map_partition(found, device, config.grid_barriers)) <= fewer else None


def _bytes(plan: KernelPlan) -> int:
    return static_size(traffic(plan).moved)


def _reads_again(plan: KernelPlan) -> bool:
    """True where blocks share the row, and read their part of it again because they cannot keep it."""
    return plan.cooperative and not plan.stage.row_mapping.keep


def _leaves_device_idle(plan: KernelPlan) -> bool:
    """True where few blocks would share the row, for want of a barrier across more."""
    blocks = plan.stage.row_mapping.row_splits
    if plan.cooperative or blocks >= plan.device.sms:
        return False
    moved = traffic(plan).moved
    return isinstance(moved, int) and moved > blocks * plan.device.choices.idle_block_bytes
