# SPDX-License-Identifier: Apache-2.0
"""The barrier of plain launches: its protocol under every interleaving, and its text under compilers.

The emulator puts its own barrier in the function's place, for it orders accesses by barriers and not by atomics. So the
protocol is checked here, on a model of it that mirrors the function step by step: one access of device memory each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tvm_stitch.codegen.gpu.grid_barrier import GRID_BARRIER
from tvm_stitch.relay.cuda_source import compile_with_nvrtc, defined, fix_source
from tvm_stitch.relay.grid_barrier import FUNCTION, INSTEAD

Memory = tuple[tuple[int, int, int], ...]
"""Of each entry of the table: its key, how many blocks have arrived, how many barriers were passed."""

KERNEL = f"""extern "C" __global__ void __launch_bounds__(64) k(unsigned* key, unsigned* a);
extern "C" __global__ void __launch_bounds__(64) k(unsigned* key, unsigned* a) {{
  for (int i = 1; i < 4; ++i) {{
    if (threadIdx.x == 0) a[i * gridDim.x + blockIdx.x] = a[(i - 1) * gridDim.x + (blockIdx.x + 1) % gridDim.x];
    {GRID_BARRIER}(key);
  }}
}}
"""


@dataclass(frozen=True)
class Block:
    """The position of one block: the barrier, the step, and the values that it holds."""

    launch: int
    barrier: int = 0
    step: str = "probe"
    at: int = 0
    before: int = -1


Step = Callable[[Block, Memory, int, int], tuple[Block, Memory]]


def protocol(block: Block, memory: Memory, key: int, blocks: int) -> tuple[Block, Memory]:
    """Take one step of the device function. A block that may only wait comes back as it is."""
    at, step = block.at, block.step
    found, arrived, passed = memory[at]

    def with_entry(entry: tuple[int, int, int]) -> Memory:
        return (*memory[:at], entry, *memory[at + 1 :])

    def now(**changes: object) -> Block:
        return Block(**{**block.__dict__, **changes})  # type: ignore[arg-type]

    if step == "probe":  # the volatile load, and the compare-and-swap that decides where it saw nothing
        return now(step="claim" if not found else "look"), memory
    if step == "claim":
        return now(step="look"), with_entry((found or key, arrived, passed))
    if step == "look":
        if found == key:
            return now(step="read"), memory
        return now(step="probe", at=(at + 1) % len(memory)), memory
    if step == "read":
        return now(step="arrive", before=passed), memory
    if step == "arrive":
        last = arrived == blocks - 1
        return now(step="reset" if last else "wait"), with_entry((found, arrived + 1, passed))
    if step == "reset":
        return now(step="release"), with_entry((found, 0, passed))
    if step == "release":  # two bits: numbers wrap around
        return now(step="probe", at=0, barrier=block.barrier + 1), with_entry(
            (found, arrived, (passed + 1) % 4)
        )
    assert step == "wait"
    if passed == block.before:
        return block, memory
    return now(step="probe", at=0, barrier=block.barrier + 1), memory


def reads_late(block: Block, memory: Memory, key: int, blocks: int) -> tuple[Block, Memory]:
    """Wrong: what was passed is read after arriving."""
    if block.step == "read":
        return Block(**{**block.__dict__, "step": "arrive"}), memory
    if block.step == "wait" and block.before < 0:
        return Block(**{**block.__dict__, "before": memory[block.at][2]}), memory
    new, changed = protocol(block, memory, key, blocks)
    if new.step == "probe" and block.step in ("wait", "release"):
        new = Block(**{**new.__dict__, "before": -1})
    return new, changed


def lets_go_early(block: Block, memory: Memory, key: int, blocks: int) -> tuple[Block, Memory]:
    """Wrong: the others are let go before the count is back at zero."""
    swapped = {"reset": "release", "release": "reset"}.get(block.step, block.step)
    new, changed = protocol(Block(**{**block.__dict__, "step": swapped}), memory, key, blocks)
    if block.step == "reset":
        return Block(**{**block.__dict__, "step": "release"}), changed
    if block.step == "release":
        return Block(**{**block.__dict__, "step": "probe", "at": 0, "barrier": block.barrier + 1}), changed
    return new, changed


def explore(
    step: Step, keys: tuple[int, ...], blocks: tuple[int, ...], barriers: int, entries: int = 2
) -> int:
    """Run launches at once in every order, and return the number of states.

    It raises AssertionError if a block passes a barrier that another of its launch has not reached. It also does if
    nobody can go on, or a count is left behind.
    """
    start = tuple(Block(launch) for launch, count in enumerate(blocks) for _ in range(count))
    memory: Memory = ((0, 0, 0),) * entries
    seen, todo = {(start, memory)}, [(start, memory)]
    while todo:
        state, memory = todo.pop()
        following = list(_next(step, state, memory, keys, blocks, barriers))
        if not following:
            assert all(b.barrier == barriers for b in state), f"nobody can go on: {state}"
            assert all(arrived == 0 for _, arrived, _ in memory), f"a count is left behind: {memory}"
        for found in following:
            if found not in seen:
                seen.add(found)
                todo.append(found)
    return len(seen)


def _next(
    step: Step,
    state: tuple[Block, ...],
    memory: Memory,
    keys: tuple[int, ...],
    blocks: tuple[int, ...],
    barriers: int,
) -> Iterator[tuple[tuple[Block, ...], Memory]]:
    for i, block in enumerate(state):
        if block.barrier == barriers:
            continue
        new, changed = step(block, memory, keys[block.launch], blocks[block.launch])
        if new == block and changed == memory:
            continue
        if new.barrier > block.barrier:
            others = [b for b in state if b.launch == block.launch]
            late = [
                b
                for b in others
                if b.barrier < block.barrier or (b.barrier == block.barrier and b.step in EARLY)
            ]
            assert not late, f"a barrier is passed that {late} have not reached"
        yield (*state[:i], new, *state[i + 1 :]), changed


EARLY = ("probe", "claim", "look", "read", "arrive")


def test_one_launch_uses_its_barrier_three_times() -> None:
    assert explore(protocol, (7,), (3,), 3) > 200


def test_two_launches_at_once_that_collide_in_the_table() -> None:
    """Both begin at the same entry: whoever comes first has it, and the other takes the next."""
    assert explore(protocol, (7, 8), (2, 2), 2) > 1000


def test_launches_of_different_sizes_at_once() -> None:
    assert explore(protocol, (7, 8), (3, 1), 2) > 1000


def test_launches_that_share_a_key_are_not_kept_apart() -> None:
    """A key is a workspace because two launches at once of one key wait for each other's blocks, or for ever."""
    with pytest.raises(AssertionError):
        explore(protocol, (7, 7), (2, 2), 2)


@pytest.mark.parametrize("wrong", [reads_late, lets_go_early])
def test_wrong_protocols_are_found(wrong: Step) -> None:
    with pytest.raises(AssertionError):
        explore(wrong, (7,), (3,), 3)


def test_the_function_is_put_before_the_kernels_once() -> None:
    fixed = fix_source(KERNEL)
    assert fixed.count(f"void {GRID_BARRIER}(const void* key)") == 1
    assert fixed.index(FUNCTION) < fixed.index("__global__")
    assert defined(fixed, GRID_BARRIER, FUNCTION) == fixed


def test_code_without_barriers_stays() -> None:
    assert defined(KERNEL.replace(GRID_BARRIER, "other"), GRID_BARRIER, FUNCTION) == KERNEL.replace(
        GRID_BARRIER, "other"
    )


def test_an_emulators_barrier_takes_its_place() -> None:
    import numpy as np

    from cuda_emulator import run_kernel

    first = np.arange(4, dtype="uint32")
    rows = np.concatenate([first, np.zeros(12, "uint32")])
    args = [np.zeros(1, "uint32"), rows]
    run = run_kernel(fix_source(KERNEL), "k", args, 4, 64, cooperative=True, inout=[1]).check()
    assert run.outputs[0].reshape(4, 4).tolist() == [[(i + k) % 4 for i in range(4)] for k in range(4)]
    assert INSTEAD in fix_source(KERNEL)


def test_nvrtc() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    cubin = compile_with_nvrtc(fix_source(KERNEL))
    assert cubin.startswith(b"\x7fELF") and b"tvm_stitch_barrier_entries" in cubin


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc() -> None:
    from tvm.contrib.nvcc import compile_cuda

    assert compile_cuda(fix_source(KERNEL), "cubin", arch="sm_90")
