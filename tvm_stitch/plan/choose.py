# SPDX-License-Identifier: Apache-2.0
"""Choose the kind of plan: one row domain, or phases of stages with grid barriers between them.

Without grid barriers, the phases become consecutive kernels: the same plan without the barrier. The alternative is a
stitch op for each side of a value that crosses rows. Both have about as many launches. In a plan of phases,
everything that a phase computes from a value needs one read of it. That is half the traffic for the gradients of
layer norm. Sums across rows are read row by row, on all blocks.
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
from .gpu.phases.partition import Partition
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

    A grid-wide plan has grid barriers if the device can launch cooperatively and the configuration allows them.
    Otherwise it is the same plan without the barrier. It has a kernel for each phase, and no stage is evaluated by
    every block.

    ``preferred`` names operators to choose as the dominants of their groups. The mapping is then propagated from them
    if it serves all operators. By default the planner chooses all dominants.

    Raises:
        Misaligned: when no plan exists. The message is the reason that ``explain`` shows.
        WrongPlan: when the planner made a plan that must not become a kernel, which is a fault of the planner.
    """
    config = config or StitchConfig()
    device = device.configured(config)
    chosen = choose(graph, device, config, preferred) if device.is_gpu else None
    if isinstance(chosen, Partition):
        return verified(map_partition(chosen, device, config.grid_barriers))
    return verified(plan_in_block(graph, device, config, preferred))


def choose(
    graph: StitchGraph, device: DeviceModel, config: StitchConfig, preferred: Collection[str] = ()
) -> Alignment | Partition:
    """Return rows of one domain or phases of stages for a graph on a GPU. Fusion and the planner use the result.

    Rows come first unless they would lie across memory. One long row that its blocks cannot share or keep is given up
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
        chosen = first()
    except Misaligned as err:
        reasons = [str(err)]
        try:
            return second()
        except Misaligned as other:
            reasons.append(str(other))
        row, grid = reversed(reasons) if phases_first else reasons
        raise Misaligned(f"{row}; grid-wide: {grid}") from None
    if isinstance(chosen, Partition) or chosen.domain.flat or not same(chosen.domain.rows, 1):
        return chosen
    return _phases_of_a_row(graph, device, config, preferred) or chosen


def _phases_of_a_row(
    graph: StitchGraph, device: DeviceModel, config: StitchConfig, preferred: Collection[str]
) -> Partition | None:
    """Return phases for a graph of one row, if its plan leaves the device idle, or reads again and phases do better."""
    plan = plan_in_block(graph, device, config, preferred)
    idle = _leaves_device_idle(plan)
    if not idle and not _reads_again(plan):
        return None
    try:
        phases = grid_partition(graph, device, config.grid_barriers, preferred)
    except Misaligned:
        return None
    fewer = (1 - device.choices.phases_gain) * _bytes(plan)
    return phases if idle or _bytes(map_partition(phases, device, config.grid_barriers)) <= fewer else None


def _bytes(plan: KernelPlan) -> int:
    return static_size(traffic(plan).moved)


def _reads_again(plan: KernelPlan) -> bool:
    """Return whether blocks share the row, and read their slice of it again because they cannot keep it."""
    return plan.cooperative and not plan.stage.row_mapping.keep


def _leaves_device_idle(plan: KernelPlan) -> bool:
    """Return whether few blocks would share the row, because a barrier across more is missing."""
    blocks = plan.stage.row_mapping.row_splits
    if plan.cooperative or blocks >= plan.device.sms:
        return False
    moved = traffic(plan).moved
    return isinstance(moved, int) and moved > blocks * plan.device.choices.idle_block_bytes
