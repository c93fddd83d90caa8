# SPDX-License-Identifier: Apache-2.0
"""Every variable gets a name of its own, which passes keep, and marks go without a trace."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.relax import op as R_
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_stitch.relax.rewriting.marked_names import MarkedNames, is_fresh, joined, marked, parts, unmarked
from tvm_stitch.relax.rewriting.rules import Rule, apply_rules
from tvm_stitch.relax.rewriting.values import bindings_of


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


def names_of(mod: tvm.IRModule, function: str = "main") -> list[str]:
    return [str(b.var.name) for b in bindings_of(mod[function].body)]


def test_variables_are_marked() -> None:
    made = MarkedNames()(Module)
    assert names_of(made) == [marked(n, i) for i, n in enumerate(["lv", "named", "gv", "lv2"], 1)]
    assert [str(param.name) for param in made["main"].params] == ["x"]
    tvm.ir.assert_structural_equal(made, Module)
    relax.analysis.well_formed(made)  # raises where it is not


def test_marked_variables_stay_and_those_of_a_pass_are_marked() -> None:
    marks = MarkedNames()
    first = marks(Module)
    assert marks(first).same_as(first)
    tanh = Rule("", lambda match: R_.exp(match.emit(R_.tanh(match.value.args[0]))), ("relax.exp",))
    before, after = names_of(first), names_of(marks(apply_rules(first, [tanh])))
    assert after == [marked("lv", 5), *before]


def test_one_name_of_several_variables_stays_with_the_last() -> None:
    """TVM numbers names anew that end in digits. A pass may give the name of a value to a part of it."""
    x, builder = relax.Var("x", relax.TensorType((4,), "float32")), relax.BlockBuilder()
    same = marked("lv7", 1)
    with builder.function("main", [x]):
        with builder.dataflow():
            values = [relax.DataflowVar(name, x.ty) for name in (same, "lv7", "lv7", same)]
            read = [x, *values]
            for value, var in zip(read, values):
                builder.emit_normalized(relax.VarBinding(var, builder.normalize(relax.op.exp(value))))
            result = builder.emit_output(relax.op.exp(values[-1]), "gv")
        builder.emit_func_output(result)
    marks = MarkedNames()
    made = names_of(marks(builder.get()))
    assert len(set(made)) == len(made) and made[3] == same and not any(map(is_fresh, made))
    assert [unmarked(name) for name in made] == ["lv7", "lv7", "lv7", "lv7", "gv"]


def test_a_value_gets_the_name_back_that_tvm_has_numbered() -> None:
    def bound(*names: str) -> list[str]:
        x, builder = relax.Var("x", relax.TensorType((4,), "float32")), relax.BlockBuilder()
        with builder.function("main", [x]):
            value = x
            for name in names:
                var = relax.Var(name, x.ty)
                builder.emit_normalized(relax.VarBinding(var, builder.normalize(relax.op.exp(value))))
                value = var
            builder.emit_func_output(value)
        return names_of(MarkedNames()(builder.get()))

    first = marked("gv", 7)
    assert bound(f"{first}1") == [first]
    assert bound(f"{first}1", f"{first}2") == [marked(first, 1), first]
    assert bound(first, f"{first}1") == [marked(first, 1), first]
    assert bound(f"{first}_sum1") == [marked(f"{first}_sum1", 1)]


def test_functions_share_no_name() -> None:
    mod = tvm.IRModule({"main": Module["main"], "other": Module["main"].with_attr("global_symbol", "other")})
    made = MarkedNames()(mod)
    assert set(names_of(made)).isdisjoint(names_of(made, "other"))


@I.ir_module
class Branches:
    @R.function
    def main(x: R.Tensor((8,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((8,), "float32"):
        y: R.Tensor((8,), "float32") = R.match_cast(x, R.Tensor((8,), "float32"))
        if c:
            z = R.exp(y)
        else:
            z = R.negative(y)
        return z


def test_branches_and_casts_are_marked() -> None:
    made = MarkedNames()(Branches)
    assert not any(map(is_fresh, names_of(made)))
    tvm.ir.assert_structural_equal(made, Branches)


def test_calls_keep_their_spans() -> None:
    span = tvm.ir.Span(tvm.ir.SourceName("node"), 0, 0, 0, 0)
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit(relax.Call(tvm.ir.Op.get("relax.exp"), [x], None, None, span))
            result = builder.emit_output(relax.op.exp(made))
        builder.emit_func_output(result)
    first = MarkedNames()(builder.get())["main"].body.blocks[0].bindings[0]
    assert first.value.span.source_name.name == "node"


@dataclass(frozen=True)
class _Data:
    text: str
    more: tuple[str, ...]


def test_marks_are_taken_out_of_data() -> None:
    name = marked("lv3", 12)
    assert unmarked(f"{name}_sum") == "lv3_sum"
    assert unmarked({name: [name, 3, None, _Data(name, (name,))]}) == {
        "lv3": ["lv3", 3, None, _Data("lv3", ("lv3",))]
    }


def test_no_entry_is_lost_with_its_mark() -> None:
    assert unmarked({f"matmul {marked('lv3', i)}": i for i in range(3)}) == {
        "matmul lv3": 0, "matmul lv3 (2)": 1, "matmul lv3 (3)": 2,
    }  # fmt: skip


def test_names_without_a_mark_at_their_end_are_fresh() -> None:
    name = marked("lv3", 12)
    assert not is_fresh(name) and not is_fresh(f"{name}[1]") and not is_fresh(joined([name, marked("y", 3)]))
    assert all(map(is_fresh, ("lv3", "named", "lv[1]", f"{name}1", f"{name}_sum")))
    assert parts(joined([name, "y"])) == [name, "y"] and parts(name) == [name]
