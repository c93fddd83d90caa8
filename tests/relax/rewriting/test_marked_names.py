# SPDX-License-Identifier: Apache-2.0
"""Numbered variables are marked, whatever else a module has, and marks go without a trace."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_stitch.relax.rewriting.marked_names import is_fresh, marked, unmarked, with_marked_names


@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((8, "n"), "float32")) -> R.Tuple(
        R.Tensor((8, "n"), "float32"), R.Tensor((8, "n"), "float32")
    ):
        with R.dataflow():
            lv = R.exp(x)
            named = R.tanh(lv)
            gv = R.add(lv, named)
            R.output(lv, gv)
        lv2 = (lv, gv)
        return lv2


def test_numbered_variables_are_marked() -> None:
    made = with_marked_names(Module)
    names = [b.var.name for block in made["main"].body.blocks for b in block.bindings]
    assert names == [marked("lv"), "named", marked("gv"), marked("lv2")]
    tvm.ir.assert_structural_equal(made, Module)
    relax.analysis.well_formed(made)  # raises where it is not


def test_calls_keep_their_spans() -> None:
    span = tvm.ir.Span(tvm.ir.SourceName("node"), 0, 0, 0, 0)
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit(relax.Call(tvm.ir.Op.get("relax.exp"), [x], None, None, span))
            result = builder.emit_output(relax.op.exp(made))
        builder.emit_func_output(result)
    first = with_marked_names(builder.get())["main"].body.blocks[0].bindings[0]
    assert first.value.span.source_name.name == "node"


@dataclass(frozen=True)
class _Data:
    text: str
    more: tuple[str, ...]


def test_marks_are_taken_out_of_data() -> None:
    name = marked("lv3")
    assert is_fresh("lv3") and is_fresh("gv") and not is_fresh(name) and not is_fresh("levy")
    assert unmarked(f"{name}_sum") == "lv3_sum"
    assert unmarked({name: [name, 3, None, _Data(name, (name,))]}) == {
        "lv3": ["lv3", 3, None, _Data("lv3", ("lv3",))]
    }
