# SPDX-License-Identifier: Apache-2.0
"""Biases, residuals and activations stay in the kernel of a matmul. Other operators do not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import single
from tests.scope.nodes import check_identified, compute, memory, scopes
from tvm_stitch.config import StitchConfig
from tvm_stitch.scope.epilogue import EpilogueRules
from tvm_stitch.scope.identified import Identified
from tvm_stitch.scope.identify import identify
from tvm_stitch.scope.node import Node, NodeKind

GREEDY = EpilogueRules(greedy=True)


def found(nodes: Sequence[Node], rules: EpilogueRules | None = None, **options: object) -> Identified:
    result = identify(nodes, StitchConfig(**options), CHOICES, rules or EpilogueRules())
    check_identified(nodes, result)
    return result


def epilogues(nodes: Sequence[Node], rules: EpilogueRules | None = None) -> list[list[str]]:
    return [[n.name for n in e] for e in found(nodes, rules).epilogues]


def test_an_activation_stays_with_its_matmul() -> None:
    nodes = [compute(["x", "w"], "m"), memory("exp", ["m"], "a"), compute(["a"], "n", escapes=True)]
    result = found(nodes)
    assert scopes(result) == set() and epilogues(nodes) == [["m", "a"]]
    assert scopes(found(nodes, epilogues=False)) == {frozenset("a")}


def test_a_mask_is_read_beside_a_matmul() -> None:
    graph = single(lambda emit, m, x: R.where(m, x, x), ((8, 64), "bool"), ((8, 64), "float32"))
    inputs = ["mask" if t.dtype == "bool" else "m" for t in graph.inputs]
    masked = Node("a", NodeKind.MEMORY, list(inputs), ["a"], graph, escapes={"a"})
    nodes = [compute(["x", "w"], "m"), masked]
    assert epilogues(nodes) == [["m", "a"]]


@pytest.mark.parametrize("readers", [["sum"], ["sum", "columns"]])
def test_what_is_stitched_anyway_is_no_epilogue(readers: list[str]) -> None:
    nodes = [compute(["x", "w"], "m"), memory("exp", ["m"], "a")]
    nodes += [memory(kind, ["a"], f"r{i}", escapes=True) for i, kind in enumerate(readers)]
    assert epilogues(nodes) == []
    assert any({"a", "r0"} <= s for s in scopes(found(nodes)))


def test_greedy_takes_what_is_stitched_anyway() -> None:
    nodes = [compute(["x", "w"], "m"), memory("exp", ["m"], "a"), memory("sum", ["a"], "b", escapes=True)]
    assert epilogues(nodes, GREEDY) == [["m", "a"]]
    assert scopes(found(nodes, GREEDY)) == {frozenset("b")}
    assert scopes(found(nodes)) == {frozenset("ab")}


def test_greedy_writes_nothing_wider_than_the_matmul() -> None:
    start = [compute(["x", "w"], "m"), memory("exp", ["m"], "a"), memory("widen", ["a"], "d")]
    back = [*start, memory("narrow", ["d"], "e"), memory("sum", ["e"], "b", escapes=True)]
    assert epilogues(back, GREEDY) == [["m", "a", "d", "e"]]
    both = [*start, memory("narrow", ["d"], "e", escapes=True), memory("narrow", ["d"], "f", escapes=True)]
    assert epilogues(both, GREEDY) == [["m", "a"]]


def test_a_value_needed_beside_is_no_epilogue() -> None:
    """The matmul's own result has two users: an epilogue would have to write it as well."""
    nodes = [compute(["x"], "m", escapes=True), memory("exp", ["m"], "a", escapes=True)]
    for rules in (None, GREEDY):
        result = found(nodes, rules)
        assert result.epilogues == [] and scopes(result) == {frozenset("a")}


def residual(other: Sequence[Node], name: str, *end: Node) -> list[Node]:
    """Build a matmul with a bias, to which ``name`` is added, before another matmul."""
    return [
        *other,
        compute(["x", "w"], "m"),
        memory("bias", ["m", "v"], "a"),
        memory("add", ["a", name], "b"),
        compute(["b"], "n", escapes=True),
        *end,
    ]


IN_MEMORY = {
    "an input": residual([], "r"),
    "a matmul's result": residual([compute(["r"], "c")], "c"),
    "a result of the model": residual([memory("exp", ["r"], "c", escapes=True)], "c"),
    "what a matmul reads": residual([memory("exp", ["r"], "c"), compute(["c"], "d", escapes=True)], "c"),
    "an epilogue's result": residual(
        [compute(["r"], "k"), memory("exp", ["k"], "c"), compute(["c"], "d", escapes=True)], "c"
    ),
    "a view of a matmul's result": residual([compute(["r"], "k"), memory("view", ["k"], "c", (64, 8))], "c"),
}


@pytest.mark.parametrize("where", IN_MEMORY)
@pytest.mark.parametrize("rules", [None, GREEDY], ids=["default", "greedy"])
def test_a_residual_that_is_in_memory_is_added_by_the_matmul(where: str, rules: EpilogueRules | None) -> None:
    assert ["m", "a", "b"] in epilogues(IN_MEMORY[where], rules)


@pytest.mark.parametrize("rules", [None, GREEDY], ids=["default", "greedy"])
def test_a_residual_made_for_this_alone_is_stitched(rules: EpilogueRules | None) -> None:
    """It would have to be written for the matmul's kernel to read."""
    nodes = residual([memory("exp", ["r"], "c")], "c")
    assert [e for e in epilogues(nodes, rules) if "b" in e] == []
    assert any({"b", "c"} <= s for s in scopes(found(nodes, rules)))


def test_a_residual_that_a_later_stitch_op_reads_too_is_stitched() -> None:
    """Matmul and stitch op would both read it."""
    nodes = [
        compute(["x", "w"], "m"),
        memory("add", ["m", "r"], "b"),
        memory("add", ["b", "r"], "c"),
        memory("sum", ["c"], "d", escapes=True),
        memory("exp", ["b"], "e", escapes=True),
    ]
    assert epilogues(nodes, GREEDY) == []


@pytest.mark.parametrize("made", [False, True], ids=["input", "made here"])
def test_a_residual_that_every_block_adds_is_read_by_every_matmul(made: bool) -> None:
    """Between the blocks are matmuls: no stitch op could read it once for several."""
    nodes = [memory("exp", ["x"], "r")] if made else []
    last = "x"
    for i in range(3):
        nodes += [compute([last], f"m{i}"), memory("add", [f"m{i}", "r"], f"a{i}", escapes=i == 2)]
        last = f"a{i}"
    for rules in (EpilogueRules(), GREEDY):
        assert epilogues(nodes, rules) == [["m0", "a0"], ["m1", "a1"], ["m2", "a2"]]


def test_a_residual_that_the_epilogue_reads_twice_is_in_memory_still() -> None:
    nodes = [
        compute(["x"], "m"),
        memory("add", ["m", "r"], "a"),
        memory("add", ["a", "r"], "b", escapes=True),
    ]
    assert epilogues(nodes, GREEDY) == [["m", "a", "b"]] == epilogues(nodes)


def test_two_matmuls_that_are_added_are_two_kernels() -> None:
    nodes = [
        compute(["x"], "m"),
        memory("bias", ["m", "v"], "a"),
        compute(["x"], "n"),
        memory("bias", ["n", "w"], "b"),
        memory("add", ["a", "b"], "c"),
        compute(["c"], "d", escapes=True),
    ]
    assert epilogues(nodes, GREEDY) == [["m", "a"], ["n", "b", "c"]]
    assert scopes(found(nodes, GREEDY)) == set()


def test_heavy_operators_stay_where_the_rules_let_them() -> None:
    nodes = [compute(["x"], "m"), memory("bias", ["m", "v"], "a"), memory("exp", ["a"], "b")]
    nodes.append(compute(["b"], "n", escapes=True))
    assert epilogues(nodes) == [["m", "a", "b"]]
    assert epilogues(nodes, EpilogueRules(heavy=False)) == []
    assert epilogues(nodes, EpilogueRules(heavy=False, greedy=True)) == [["m", "a"]]


def test_boundaries_say_which_kernel_computes_an_epilogue() -> None:
    nodes = [compute(["x"], "m"), memory("exp", ["m"], "a"), memory("sum", ["a"], "b", escapes=True)]
    (boundary,) = found(nodes, GREEDY).boundaries
    assert (boundary.producer, boundary.consumer) == ("a", "b")
    assert boundary.reason == "computed in the kernel of m"


def drawn(seed: int) -> list[Node]:
    """Draw thirty nodes, a third of them matmuls. Some results are needed beyond the graph, some by nobody."""
    draw = random.Random(seed)
    values = ["x", "y"]
    nodes: list[Node] = []
    for i in range(30):
        kind = draw.choice(["compute", "compute", "add", "add", "exp", "bias", "spread"])
        name, escapes = f"n{i}", draw.random() < 0.05
        first = draw.choice([values[-1], values[-1], *values[-6:]])
        if kind == "compute":
            nodes.append(compute([first, draw.choice(values[-6:])], name, escapes))
        else:
            others = {"add": [draw.choice(values[-6:])], "exp": [], "bias": [f"v{i}"], "spread": [f"c{i}"]}
            nodes.append(memory(kind, [first, *others[kind]], name, escapes=escapes))
        values.append(name)
    return nodes


@pytest.mark.parametrize("rules", [EpilogueRules(), GREEDY], ids=["default", "greedy"])
def test_random_graphs_stay_executable(rules: EpilogueRules) -> None:
    """Units have an order that works and complete interfaces (``check_identified``). One value leaves an epilogue."""
    chains = 0
    for seed in range(40):
        nodes = drawn(seed)
        for chain in found(nodes, rules).epilogues:
            chains += 1
            outside = [n for n in nodes if n not in chain]
            needed = {v for n in outside for v in n.inputs} | {v for n in chain for v in n.escapes}
            assert [n for n in chain if needed & set(n.outputs)] == [chain[-1]]
    assert chains > 20


TEMPLATE = EpilogueRules(template=lambda _graph: True)


def product(output: str) -> Node:
    graph = single(lambda emit, x, w: R.matmul(x, w), ((8, 32), "float32"), ((32, 64), "float32"))
    return Node(output, NodeKind.COMPUTE, [f"x{output}", f"w{output}"], [output], graph, "compute-intensive")


def test_a_template_writes_the_narrower_result_whoever_reads_it() -> None:
    nodes = [product("m"), memory("narrow16", ["m"], "a"), memory("widen16", ["a"], "b")]
    nodes += [memory("sum", ["b"], "c", escapes=True)]
    assert epilogues(nodes, TEMPLATE) == [["m", "a"]]
    assert epilogues(nodes) == []  # TVM's kernels are what they were
    assert scopes(found(nodes, TEMPLATE)) == {frozenset("bc")}


def test_a_residual_is_widened_as_a_template_reads_it() -> None:
    nodes = [
        product("r"),
        memory("narrow16", ["r"], "n", escapes=True),
        product("m"),
        memory("widen16", ["n"], "w"),
        memory("add", ["m", "w"], "a"),
        memory("narrow16", ["a"], "b", escapes=True),
    ]
    assert epilogues(nodes, TEMPLATE) == [["r", "n"], ["m", "w", "a", "b"]]


def test_a_residual_that_others_read_widened_is_not_widened_twice() -> None:
    nodes = [
        product("m"),
        memory("exp", ["y"], "y1"),
        memory("narrow16", ["y1"], "n"),
        memory("widen16", ["n"], "w"),
    ]
    nodes += [memory("add", ["m", "w"], "a", escapes=True), memory("exp", ["w"], "e", escapes=True)]
    assert all("w" not in names for names in epilogues(nodes, TEMPLATE))
