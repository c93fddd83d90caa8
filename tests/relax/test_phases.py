# SPDX-License-Identifier: Apache-2.0
"""The pipeline as a table: its claims of order hold, and what runs is the table."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import tvm

from stitch_testing.random.graphs import emulated_target
from tests.relax.test_planted_failures import three_scopes
from tvm_stitch.config import StitchConfig
from tvm_stitch.context import CompileContext
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.pass_table import PHASES
from tvm_stitch.relax.phases import ALWAYS, Condition, Phase, Row, numbers_of, table
from tvm_stitch.relax.pipeline import passes_table

TARGETS = {
    "cuda": tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm"),
    "llvm": tvm.target.Target("llvm"),
    "c": tvm.target.Target("c"),
    "opencl": tvm.target.Target({"kind": "opencl"}, host="llvm"),
}
COMPUTE = ["auto", "libraries", "templates", "tvm"]
COMPUTE += [f"auto, {kind}=tvm" for kind in ("matmul", "convolution", "attention")] + ["tvm, attention=auto"]
CONTEXTS = [
    CompileContext(target, StitchConfig(compute=compute, cuda_graph=graphs))
    for target, compute, graphs in itertools.product(TARGETS.values(), COMPUTE, (False, True))
]
ROWS = {row.name: (phase, row) for phase in PHASES for row in phase.rows}
CLAIMS = [(row.name, claimed) for _, row in ROWS.values() for claimed in row.after]


def broken_claims(phases: Sequence[Phase], context: CompileContext) -> list[str]:
    """Return a sentence for each claim of the rows' order that does not hold, for a target and its options.

    A claimed row that does not run under these options breaks nothing. A claimed name that no row and no phase has
    breaks the claim.
    """
    broken: list[str] = []
    every, done = set(numbers_of(phases)), set[str]()
    running = {name for phase in phases for name in (phase.name, *(r.name for r in phase.running(context)))}
    for phase in phases:
        for row in phase.running(context):
            for claimed in row.after:
                if claimed not in every:
                    broken.append(
                        f"{row.name} claims to run after {claimed}, which is neither a pass nor a phase"
                    )
                elif claimed in running - done:
                    broken.append(f"{row.name} must run after {claimed}: {row.after[claimed]}")
            done.add(row.name)
        done.add(phase.name)
    return broken


def swapped(first: str, second: str) -> list[Phase]:
    """Return the phases with two rows, or the phases of two names, exchanged."""
    if first in ROWS and second in ROWS:
        rows = {first: ROWS[second][1], second: ROWS[first][1]}
        return [
            dataclasses.replace(phase, rows=tuple(rows.get(row.name, row) for row in phase.rows))
            for phase in PHASES
        ]
    phases = {phase.name: phase for phase in PHASES}
    one, other = (ROWS[name][0] if name in ROWS else phases[name] for name in (first, second))
    places = {one.name: other, other.name: one}
    return [places.get(phase.name, phase) for phase in PHASES]


def test_the_claims_of_order_hold_for_every_target_and_option() -> None:
    assert len(CLAIMS) > 50
    for context in CONTEXTS:
        assert broken_claims(PHASES, context) == []


@pytest.mark.parametrize(("name", "claimed"), CLAIMS, ids="-".join)
def test_rows_in_each_others_place_break_their_claim(name: str, claimed: str) -> None:
    """For some target and options: the rows of a claim need not run under the same ones."""
    why = f"{name} must run after {claimed}: {ROWS[name][1].after[claimed]}"
    assert any(why in broken_claims(swapped(name, claimed), context) for context in CONTEXTS)


def test_a_claimed_name_that_is_neither_a_row_nor_a_phase_is_told() -> None:
    row = Row("B", lambda c: None, "Do nothing.", after={"A": "of a reason"})
    (told,) = broken_claims([Phase("only", "nothing", (row,))], CONTEXTS[0])
    assert "B claims to run after A" in told


def test_names_are_unique_and_every_row_runs_somewhere() -> None:
    names = [name for phase in PHASES for name in (phase.name, *(row.name for row in phase.rows))]
    assert len(names) == len(set(names)) == len(numbers_of(PHASES))
    for phase in PHASES:
        for row in phase.rows:
            runs = {row.when.holds(context) for context in CONTEXTS}
            assert runs == ({True} if row.when is ALWAYS else {True, False}), row.name
            assert row.what.endswith(".") and row.what[0].isupper()


def test_conditions_are_combined() -> None:
    yes, no = Condition("yes", lambda _: True), Condition("no", lambda _: False)
    assert (yes | no).holds(CONTEXTS[0]) and not (yes & no).holds(CONTEXTS[0])
    assert ((yes | no).text, (yes & no).text) == ("yes or no", "yes, no")


@tvm.instrument.pass_instrument
class Names:
    """The names of the passes that run, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, _mod: tvm.IRModule, info: Any) -> None:
        self.names.append(str(info.name))


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_instruments_see_the_rows_of_the_table_in_its_order(kind: str) -> None:
    target = emulated_target() if kind == "cuda" else TARGETS["llvm"]
    seen: Any = Names()
    with tvm.transform.PassContext(instruments=[seen]):
        pipeline(target)(three_scopes())
    context = CompileContext(target)
    expected = [row.name for phase in PHASES for row in phase.running(context)]
    left = iter(seen.names)
    assert [name for name in expected if name not in left] == []
    assert "OneAtATime" not in seen.names and "ConstantViews" not in seen.names
    views = [name for name in seen.names if name.startswith("ConstantViews")]
    assert views == ["ConstantViews.weights", "ConstantViews.dequantized", "ConstantViews.layouts"]


def test_the_table_marks_what_does_not_run() -> None:
    text = passes_table("cuda")
    assert "  - UnequalSplits [CPUs]: " in text and "    LibraryMatmuls [CUDA]: " in text
    assert "    UnequalSplits [CPUs]: " in passes_table("llvm")
    assert "  - " not in passes_table()
    lines = table(PHASES, width=80).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) > len(ROWS)
