# SPDX-License-Identifier: Apache-2.0
"""The device functions of a recurrent layer's kernel, and its shared memory and registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...codegen import builder as B
from ...compat import Buffer, Expr, T, tir
from ...graph.dtype import item_bytes
from ..cuda.sources import ELEMENT_TYPES, sources
from .cell import Cell
from .cuda_plan import Division, buffers_of

FLOAT = "float32"


@dataclass(frozen=True, eq=False)
class Memory:
    """The memory of a block.

    Attributes:
        element: the C type of weights in device memory.
        shared: shared memory: barriers, buffers of states, sums of gates, weights that stay.
        own: a thread's registers of weights that stay.
        found: a thread's registers of the products of its cell.
    """

    element: str
    shared: Buffer
    own: Buffer
    found: Buffer

    @staticmethod
    def of(cell: Cell, division: Division, dtype: str) -> Memory:
        """Allocate the memory of a layer whose weights are of type ``dtype``."""
        d = division

        def floats(count: int, name: str, scope: str) -> Buffer:
            return B.whole(B.local([count], FLOAT, name, scope))

        shared = floats(d.shared_bytes(cell, item_bytes(dtype)) // 4, "shared", "shared.dyn")
        own = floats(max(1, d.registers(cell)), "own", "local")
        return Memory(
            ELEMENT_TYPES[dtype], shared, own, floats(cell.gates * d.cells_of_lane, "found", "local")
        )


class DeviceFunctions:
    """Emits calls of the functions of ``native/recurrent.cuh`` for one layer.

    States lie in buffers of shared memory. Step t reads buffer ``t % 2`` and sends to the other one. Buffer 2 has the
    operands of a second product.
    """

    def __init__(self, cell: Cell, division: Division, memory: Memory, weights: Buffer):
        """Fix the template arguments of all functions.

        Args:
            cell: the layer's cell.
            division: its division.
            memory: the block's memory.
            weights: the state's weights <G*H,H>.
        """
        d = division
        self.memory, self.weights, self.cells = memory, weights, d.cells_of_lane
        numbers = (
            cell.hidden, cell.gates, d.blocks, d.units, d.warps, d.lanes, d.own, d.kept, d.rows,
            d.together, d.at_once, buffers_of(cell),
        )  # fmt: skip
        self.layer = ", ".join((memory.element, *map(str, numbers)))

    def enter(self, first_state: Expr | None, first_unit: Expr, rows: Expr) -> None:
        """Emit the load of the weights that stay and the first states.

        Args:
            first_state: address of the first state of the cluster's first row, or None if the states are 0.
            first_unit: the block's first unit.
            rows: rows of the cluster.
        """
        given = {"void* own": _start(self.memory.own), "const void* r": _start(self.weights)}
        given |= {} if first_state is None else {"const void* h": first_state}
        self._call("enter", given | {"int first_unit": _int(first_unit), "int rows": _int(rows)})

    def wait(self, buffer: Expr, parity: Expr, first_unit: Expr, rows: Expr) -> None:
        """Emit a wait for the states of all blocks in a buffer. ``parity`` is that of its uses before."""
        given = {
            "int buffer": _int(buffer), "int parity": _int(parity),
            "int first_unit": _int(first_unit), "int rows": _int(rows),
        }  # fmt: skip
        self._call("wait", given)

    def products(self, buffer: Expr, gates: tuple[int, ...], first_unit: Expr, rows: Expr) -> list[Expr]:
        """Emit the products of a buffer's states and the weights of neighbouring gates.

        Returns:
            The products of the gates for each cell of the lane. Lane i has the warp's unit ``i % units_of_warp`` in
            row ``i // units_of_warp``, and in ``cell_rows`` more for each further cell.
        """
        given = {
            "void* own": _start(self.memory.own), "void* found": _start(self.memory.found),
            "const void* r": _start(self.weights),
            "int buffer": _int(buffer), "int first_unit": _int(first_unit), "int rows": _int(rows),
        }  # fmt: skip
        self._call("products", given, f", {gates[0]}, {len(gates)}")
        return [B.fetch(self.memory.found, number) for number in range(len(gates) * self.cells)]

    def send(self, value: Expr, number: int, buffer: Expr, first_unit: Expr, rows: Expr) -> None:
        """Emit the stores of a warp's states to a buffer of all blocks.

        All lanes take part, each with the value of its cell of a number.
        """
        given = {
            "float value": value, "int number": _int(B.i64(number)), "int buffer": _int(buffer),
            "int first_unit": _int(first_unit), "int rows": _int(rows),
        }  # fmt: skip
        self._call("send", given)

    def _call(self, function: str, given: Mapping[str, Expr], counts: str = "") -> None:
        """Emit a call of a function template of the layer with further template arguments ``counts``."""
        numbers = (self.layer + counts).replace(", ", "_")
        name = f"tvm_stitch_recurrent_{function}_{numbers}"
        names = [declared.split()[-1] for declared in given]
        cast = {
            "own": "(float*)own",
            "found": "(float*)found",
            "r": f"(const {self.memory.element}*)r",
            "h": f"(const {self.memory.element}*)h",
        }
        code = sources("recurrent") + _CALL.format(
            name=name,
            declared=", ".join(given),
            called=f"{function}<Layer<{self.layer}>{counts}>",
            given=", ".join(cast.get(each, each) for each in names),
        )
        B.evaluate(T.cuda.func_call(name, _start(self.memory.shared), *given.values(), source_code=code))


def _start(buffer: Buffer) -> Expr:
    return tir.address_of(B.fetch(buffer, *[0] * len(buffer.shape)))


def _int(value: Expr) -> Expr:
    return tir.Cast("int32", value)


_CALL = """
__device__ __forceinline__ void {name}(void* shared, {declared}) {{
  using namespace tvm_stitch::recurrent;
  {called}((float*)shared, {given});
}}
"""
