# SPDX-License-Identifier: Apache-2.0
"""Rules apply to what they name, once and with operands first, and know the readers of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_op, wildcard

from tests.graph.helpers import build
from tvm_stitch.relax.rewriting.operators import operator_name
from tvm_stitch.relax.rewriting.rules import CALL, ITEM, Match, Rule, apply_rules

X = ((4,), "float32")


def chain(*operators: Callable[[Any], Any]) -> tvm.IRModule:
    """Operators one after the other, of one tensor."""

    def body(emit: Any, x: Any) -> list[Any]:
        for each in operators[:-1]:
            x = emit(each(x))
        return [operators[-1](x)]

    return build(body, X)


def to(operator: Callable[[Any], Any]) -> Callable[[Match], Any]:
    return lambda match: operator(match.value.args[0])


def check(mod: tvm.IRModule, rules: list[Rule], *operators: Callable[[Any], Any], **options: bool) -> None:
    tvm.ir.assert_structural_equal(apply_rules(mod, rules, **options), chain(*operators))


def test_operands_first_and_no_replacement_is_rewritten_again() -> None:
    rules = [Rule("", to(R.sin), ("relax.exp",)), Rule("", to(R.exp), ("relax.sin",))]
    check(chain(R.exp, R.sin, R.tan, R.exp), rules, R.sin, R.exp, R.tan, R.sin)


def test_the_first_rule_that_has_a_replacement_is_taken() -> None:
    rules = [
        Rule("", lambda match: None, ("relax.exp",)),
        Rule("", to(R.sin), (CALL,)),
        Rule("", to(R.cos), ("relax.exp",)),
    ]
    check(chain(R.exp, R.tan), rules, R.sin, R.sin)


def test_a_module_is_itself_where_nothing_applies() -> None:
    mod = chain(R.exp, R.tan)
    silent = Rule("", lambda match: None, ("relax.exp",))
    missing = Rule("", to(R.sin), (CALL,), needs=(("relax.cos", "relax.sin"),))
    for rule in (silent, missing, Rule("", to(R.sin), ("relax.cos",)), Rule("", to(R.sin))):
        assert apply_rules(mod, [rule]).same_as(mod)
    check(
        mod, [Rule("", to(R.sin), (CALL,), needs=(("relax.tan", "relax.sin"), ("relax.exp",)))], R.sin, R.sin
    )


def test_a_rule_needs_one_call_that_passes_its_test() -> None:
    def may_change(call: Any) -> bool:
        asked.append(operator_name(call))
        return passes

    asked: list[str] = []
    passes = False
    mod = chain(R.exp, R.tan, R.exp)
    rule = Rule("", to(R.sin), ("relax.exp",), when=may_change)
    assert apply_rules(mod, [rule]).same_as(mod)
    assert asked == ["relax.exp"] * 2
    passes = True
    check(mod, [rule], R.sin, R.tan, R.sin)


def test_rules_apply_to_variables() -> None:
    mod = chain(R.exp, R.exp, R.exp)
    chosen = mod["main"].body.blocks[0].bindings[1].var
    check(mod, [Rule("", to(R.sin), variables={chosen})], R.exp, R.sin, R.exp)


def test_rules_apply_to_elements_of_tuples() -> None:
    def second_half(match: Match) -> Any:
        split = match.values[match.before.tuple_value]
        return R.strided_slice(match.now(split.args[0]), [0], [2], [4])

    mod = build(lambda emit, x: [emit(R.split(x, 2))[1]], X)
    made = apply_rules(mod, [Rule("", second_half, (ITEM,), leaves_unused=True)])
    tvm.ir.assert_structural_equal(made, build(lambda emit, x: [R.strided_slice(x, [0], [2], [4])], X))


def test_patterns() -> None:
    data = wildcard()
    inner = is_op("relax.sin")(data)
    rule = Rule("", lambda match: R.cos(match.now(match.found[data])), ("relax.exp",), is_op("relax.exp")(inner),
                leaves_unused=True)  # fmt: skip
    check(chain(R.tan, R.sin, R.exp), [rule], R.tan, R.cos)
    assert apply_rules(mod := chain(R.sin, R.tan, R.exp), [rule]).same_as(mod)


def over_two_blocks() -> tvm.IRModule:
    """Build a sine in one dataflow block, whose operand is not seen in the other block, and its exponential in that
    one.
    """
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            sine = builder.emit_output(R.sin(builder.emit(R.tan(x))))
        builder.emit(R.negative(x))  # else the blocks become one
        with builder.dataflow():
            result = builder.emit_output(R.exp(sine))
        builder.emit_func_output(result)
    return builder.get()


def test_what_another_block_hides_is_no_match() -> None:
    data = wildcard()
    pattern = is_op("relax.exp")(is_op("relax.sin")(data))
    found = Rule("", lambda match: R.cos(match.now(match.found[data])), ("relax.exp",), pattern)
    assert apply_rules(mod := over_two_blocks(), [found]).same_as(mod)
    seen: list[tuple[str, str]] = []

    def note(match: Match) -> None:
        seen.append((operator_name(match.before), operator_name(match.definition(match.value.args[0]))))
        match.notes[match.var] = len(match.notes)

    apply_rules(mod, [Rule("", note, (CALL,))])
    assert seen == [("relax.tan", ""), ("relax.sin", "relax.tan"), ("relax.negative", ""), ("relax.exp", "")]


def test_notes_are_of_one_block() -> None:
    counts: list[int] = []

    def note(match: Match) -> None:
        counts.append(len(match.notes))
        match.notes[match.var] = None

    apply_rules(over_two_blocks(), [Rule("", note, (CALL,))])
    assert counts == [0, 1, 0, 0]


def test_readers_of_values() -> None:
    mod = build(lambda emit, x: [R.add(y := emit(R.exp(x)), y), R.tan(emit(R.exp(x)))], X)
    single = Rule("", lambda match: R.sin(match.value.args[0]) if len(match.readers[match.var]) == 1 else None,
                  ("relax.exp",))  # fmt: skip
    after = build(lambda emit, x: [R.add(y := emit(R.exp(x)), y), R.tan(emit(R.sin(x)))], X)
    tvm.ir.assert_structural_equal(apply_rules(mod, [single]), after)


def test_what_nothing_reads_is_dropped_where_a_rule_says_so() -> None:
    for drops in (False, True):
        rule = Rule(
            "", lambda match: R.cos(relax.const([1.0] * 4, "float32")), ("relax.sin",), leaves_unused=drops
        )
        mod = chain(R.exp, R.sin, R.tan)
        made = apply_rules(mod, [rule])["main"]
        names = [operator_name(value) for value in relax.analysis.get_var2val(made).values()]
        assert ("relax.exp" in names) == (not drops) and "relax.cos" in names


def test_constants_are_read_in_the_place_of_variables() -> None:
    one = relax.const([1.0] * 4, "float32")
    mod = build(lambda emit, x: [R.add(x, emit(R.exp(one)))], X)
    rule = Rule("", lambda match: one, ("relax.exp",), leaves_unused=True)
    made = apply_rules(mod, [rule], inlines_constants=True)
    tvm.ir.assert_structural_equal(made, build(lambda emit, x: [R.add(x, one)], X))


def test_names_are_unique_if_asked_for() -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            sine = builder.emit(R.sin(builder.emit(R.exp(x), "lv")), "sine")
            result = builder.emit_output(R.tan(sine))
        builder.emit_func_output(result)
    rule = Rule("", lambda match: R.cos(match.emit(R.negative(match.value.args[0]))), ("relax.sin",))
    for unique in (False, True):
        made = apply_rules(builder.get(), [rule], unique_names=unique)
        names = [var.name for var in relax.analysis.get_var2val(made["main"])]
        assert (len(set(names)) == len(names)) == unique and "sine" in names
