# SPDX-License-Identifier: Apache-2.0
"""WrittenOutLayers: find the recurrent layers of a model whose steps are written one after the other.

The cell may be any element-wise function of the state's products, of inputs and of one more state. LSTMs and
attention-gated GRUs are such cells. The layer becomes a call of a function with a description, as the importers write
LSTMs (``recurrent.py``). So ``RecurrentLayers`` computes all steps by one kernel.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import op as R

from ... import compat
from ...compute.recurrent.cell import Cell, Layer
from ...compute.recurrent.cuda_plan import division_of
from ...support.failures import Refusal, reason_of
from ...support.module_pass import module_pass
from ..rewriting.compute_pass import ComputePass
from ..rewriting.functions import with_own_functions
from ..rewriting.operators import operator_name
from ..rewriting.readers import readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from .recurrent import recurrent
from .stacked import Stacked
from .step_program import StepProgram
from .written_out import MATMUL, Chain, chains_of, weight_of


@module_pass
class WrittenOutLayers(ComputePass):
    """Replace steps by calls of a recurrent layer's function, on CPUs and on GPUs with clusters.

    Targets that have no kernel for such a layer keep the steps.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if self.target.kind.name not in ("llvm", "cuda"):
            return mod
        layers: list[_Written] = []

        def reordered(func: relax.Function) -> relax.Function:
            found = self._found(func)
            layers.extend(found)
            return _reordered(func, found) if found else func

        mod = with_own_functions(mod, reordered)
        if not layers:
            return mod
        rules = [
            Rule("steps are one kernel", each.replaced, variables=each.variables, leaves_unused=True)
            for each in layers
        ]
        return apply_rules(mod, rules)

    def _found(self, func: relax.Function) -> list[_Written]:
        choices = self.device.choices
        least = choices.gpu_written_steps if self.device.is_gpu else choices.cpu_written_steps
        values = dict(relax.analysis.get_var2val(func).items())
        if sum(operator_name(value) == MATMUL for value in values.values()) < least:
            return []
        readers = readers_of(func)
        found: list[_Written] = []
        for block in func.body.blocks:
            if not isinstance(block, relax.DataflowBlock):
                continue
            for chain in chains_of(block, values, readers, least):
                try:
                    written = _Written(chain, StepProgram(chain, values), values, readers)
                    self._check(written)
                except Exception as err:
                    reason_of(err, "written-out layer", self.config.strict)
                    continue
                found.append(written)
        return found

    def _check(self, written: _Written) -> None:
        """Raise a Refusal if no kernel computes the layer."""
        dtype = str(written.chain.states[0].ty.dtype.dtype)
        if any(str(var.ty.dtype.dtype) != dtype for var in written.read):
            raise Refusal("its values have several types")
        if self.target.kind.name == "cuda":
            batch = compat.int_value(written.chain.states[0].ty.shape.values[0])
            division_of(written.layer.cell, dtype, batch, self.device, 1)
        elif dtype != "float32":
            raise Refusal(f"a CPU has no kernel for {dtype}")


class _Written:
    """A layer that a model writes out, and its replacement."""

    def __init__(self, chain: Chain, step: StepProgram, values: Any, readers: Any):
        self.chain, self.step, self.values = chain, step, values
        self.layer = Layer(Cell("cell", step.hidden, (), program=step.program))
        self.stacks: dict[relax.Var, tuple[int, bool]] = {}
        self.variables: set[relax.Var] = {*chain.states}
        if chain.last_cell is not None:
            self.variables.add(chain.last_cell)
        for reader in readers.get(chain.states[0], []):
            backwards = None if reader is None else self._stacks_all(reader.value)
            if backwards is not None:
                self.stacks[reader.var] = int(reader.value.attrs.axis) % reader.var.ty.ndim, backwards
                self.variables.add(reader.var)
        if chain.cell_state is not None:
            leaf, _ = chain.cell_state
            self.first_cell: relax.Expr | None = leaf.values[0]
        else:
            self.first_cell = None
        self._results: list[relax.Expr] = []

    @property
    def read(self) -> list[relax.Expr]:
        """Values whose types must be that of the state."""
        chain = self.chain
        of_inputs = [value for leaf, _ in self.step.inputs for value in leaf.values]
        cells = [] if self.first_cell is None else [self.first_cell]
        return [
            chain.first,
            *cells,
            *of_inputs,
            *(vector for vector, _ in self.step.vectors),
            *chain.products,
        ]

    def _stacks_all(self, value: relax.Expr) -> bool | None:
        """Return whether a value stacks the states from the last to the first, or None if it is no stack of all."""
        if operator_name(value) not in ("relax.stack", "relax.concat"):
            return None
        if not isinstance(value.args[0], relax.Tuple):
            return None
        fields, states = list(value.args[0].fields), list(self.chain.states)
        if len(fields) != len(states):
            return None
        orders = {False: states, True: states[::-1]}
        return next(
            (back for back, order in orders.items() if all(a.same_as(b) for a, b in zip(fields, order))), None
        )

    def replaced(self, match: Match) -> relax.Expr:
        """Return the value of a state, or of the stack of all states, from the layer's results."""
        if not self._results:
            self._results = self._called(match)
        y, last = self._results[:2]
        if match.var in self.stacks:
            axis, backwards = self.stacks[match.var]
            order = [1, 2]
            order.insert(axis, 0)
            y = match.emit(R.flip(y, 0)) if backwards else y
            whole = match.emit(R.permute_dims(y, order)) if axis else y
            return R.reshape(whole, match.before.ty.shape)
        if match.var.same_as(self.chain.last_cell):
            return self._results[2]
        number = next(i for i, var in enumerate(self.chain.states) if var.same_as(match.var))
        if number == len(self.chain.states) - 1:
            return last
        row = match.emit(R.strided_slice(y, [0], [number], [number + 1]))
        return R.reshape(row, match.before.ty.shape)

    def _called(self, match: Match) -> list[relax.Expr]:
        emit, chain = match.emit, self.chain
        stacked = Stacked(self.values, emit, match.now)
        steps, hidden = len(chain.states), self.step.hidden
        batch = chain.states[0].ty.shape.values[0]
        parts = []
        for leaf, width in self.step.inputs:
            made = stacked.of(leaf.values)
            if width == 1:
                made = emit(R.broadcast_to(made, [steps, batch, hidden]))
            parts.append(made)
        operands = {
            "x": parts[0] if len(parts) == 1 else emit(R.concat(parts, -1)),
            "h": match.now(chain.first),
        }
        weight, transposed = weight_of(self.values, chain.products[0])
        weight = match.now(weight)
        operands["r"] = weight if transposed else emit(R.permute_dims(weight))
        if self.first_cell is not None:
            operands["c"] = match.now(self.first_cell)
        if self.step.vectors:
            flat = [
                each if each.ty.ndim == 1 else emit(R.reshape(each, [width]))
                for each, width in ((match.now(vector), width) for vector, width in self.step.vectors)
            ]
            operands["vectors"] = flat[0] if len(flat) == 1 else emit(R.concat(flat, 0))
        return list(recurrent(match.builder, self.layer, operands))


def _reordered(func: relax.Function, layers: list[_Written]) -> relax.Function:
    """Return a function in which what depends on no layer's steps comes first in each dataflow block.

    So all inputs of a layer are there when its first step begins.
    """
    blocks = []
    for block in func.body.blocks:
        bindings = list(block.bindings)
        for layer in layers if isinstance(block, relax.DataflowBlock) else []:
            behind = {*layer.chain.products}
            if bindings and not any(binding.var in behind for binding in bindings):
                continue
            before: list[relax.Binding] = []
            after: list[relax.Binding] = []
            for binding in bindings:
                reads = relax.analysis.free_vars(binding.value)
                late = binding.var in behind or any(var in behind for var in reads)
                if late:
                    behind.add(binding.var)
                (after if late else before).append(binding)
            bindings = [*before, *after]
        dataflow = isinstance(block, relax.DataflowBlock)
        blocks.append(relax.DataflowBlock(bindings) if dataflow else block)
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
