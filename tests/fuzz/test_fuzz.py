# SPDX-License-Identifier: Apache-2.0
"""The fuzzer: a run of fixed seeds finds nothing, a planted fault is found and shrunk, a crash costs one case."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any

import fuzz
import pytest
from fuzzing import workers
from fuzzing.case import Case, Input, Step, extent, pruned
from fuzzing.execute import Outcome, Settings, check
from fuzzing.generate import Profile, generate
from fuzzing.guard import guard
from fuzzing.shrink import candidates, shrink
from fuzzing.workers import Answer, Work, Worker, run_all

from tvm_stitch.codegen import combine
from tvm_stitch.repairs.schedule import sound_arithmetic

pytestmark = pytest.mark.usefixtures("children_without_torch")

SMALL = Profile(elements=3000, runs=2)
STRICT = Settings(nan_max="propagate")
SEEDS = list(range(40))
EMULATED = list(range(8))


def test_cases_go_to_json_and_back() -> None:
    cases = [generate(seed, SMALL) for seed in range(20)]
    assert all(Case.from_json(case.to_json()) == Case.from_json(case.to_json()) for case in cases)
    assert [Case.from_json(case.to_json()).to_json() for case in cases] == [case.to_json() for case in cases]
    assert generate(3, SMALL).to_json() == cases[3].to_json()


def test_cases_are_as_varied_as_they_should_be() -> None:
    cases = [generate(seed, Profile()) for seed in range(150)]
    assert sum(bool(case.symbols) for case in cases) >= len(cases) / 4
    dims = [d for case in cases for p in case.inputs for d in p.shape]
    assert 0 in dims and 1 in dims
    assert {len(p.shape) for case in cases for p in case.inputs} == set(range(7))
    assert len({p.dtype for case in cases for p in case.inputs}) >= 10
    assert any(len(case.outputs) > 1 for case in cases)
    assert any(output < len(case.inputs) for case in cases for output in case.outputs)
    assert any(len(set(step.args)) < len(step.args) for case in cases for step in case.steps)
    assert len({step.op for case in cases for step in case.steps}) > 60
    sizes = [s for case in cases for run in case.sizes for s in run.values()]
    assert {0, 1} <= set(sizes) and max(sizes) > 100


def test_a_run_of_fixed_seeds_finds_nothing_on_llvm() -> None:
    outcomes = [check(generate(seed, SMALL), STRICT) for seed in SEEDS]
    assert not [(s, o.kind, o.detail) for s, o in zip(SEEDS, outcomes) if o.failed]
    assert sum(o.stitched > 0 for o in outcomes) > len(SEEDS) / 2
    judged, elements = sum(o.judged for o in outcomes), sum(o.elements for o in outcomes)
    assert judged > 0.9 * elements


def test_a_run_of_fixed_seeds_finds_nothing_in_the_emulator() -> None:
    profile = Profile(elements=1000, runs=1, steps=8, rare=("index_of_extreme", "scan"))
    settings = Settings("emulator", nan_max="propagate")
    outcomes = [check(generate(seed, profile), settings) for seed in EMULATED]
    assert not [(s, o.kind, o.detail) for s, o in zip(EMULATED, outcomes) if o.failed]
    assert any(o.stitched for o in outcomes)


def _in_process() -> Any:
    """Return a worker that stays in this process, where faults are planted."""

    class Here:
        def ask(self, work: Work, _timeout: float) -> Answer:
            return workers.answer(work)

    return Here()


def test_a_planted_fault_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes of a row's sum are combined by their maximum."""
    right = combine.combine
    from tvm_stitch.codegen.cpu import base, columns, rows

    def wrong(combiner: str, a: Any, b: Any, *arithmetic: Any) -> Any:
        return right("max" if combiner == "sum" else combiner, a, b, *arithmetic)

    for module in (combine, base, columns, rows):
        if hasattr(module, "combine"):
            monkeypatch.setattr(module, "combine", wrong)
    case = Case(
        inputs=(Input((4, 64), "float32", "normal", 0), Input((64,), "float32", "normal", 1)),
        steps=(
            Step("add", (0, 1)),
            Step("sum", (2,), {"axis": [1], "keepdims": True}),
            Step("subtract", (2, 3)),
            Step("exp", (4,)),
        ),
        outputs=(5, 2),
    )
    outcome = check(case, Settings())
    assert outcome.kind == "wrong"
    small, found = shrink(case, outcome, Settings(), _in_process(), 60, 60)
    assert found.kind == "wrong"
    assert [step.op for step in small.steps] == ["sum"] and len(small.inputs) == 1
    monkeypatch.undo()
    assert check(case, Settings()).kind == "ok"


def test_what_no_output_needs_is_left_out() -> None:
    case = Case(
        inputs=(Input(("n",), "float32"), Input(("n//2",), "float32"), Input((3,), "float32")),
        steps=(Step("exp", (1,)), Step("exp", (2,)), Step("tanh", (3,))),
        outputs=(5,),
        sizes=({"n": 8},),
    )
    small = pruned(case)
    assert [p.shape for p in small.inputs] == [("n",), ("n//2",)]  # the first one says what n is
    assert [(s.op, s.args) for s in small.steps] == [("exp", (1,)), ("tanh", (2,))]
    assert small.outputs == (3,)
    assert extent("(n + 1)//2", {"n": 8}) == 4
    assert any(c.symbols == [] for c in candidates(small, Outcome("wrong")))


def test_a_crash_and_a_hang_cost_one_case_each() -> None:
    def one(number: int) -> Case:
        return generate(number, SMALL)

    works: Iterator[Work] = iter([Work(STRICT, one(0)), Work(Settings("crash")), Work(STRICT, one(1))])
    kinds = [a.outcome.kind for a in run_all(works, 1, 120, task="tests.fuzz.misbehaving:answer")]
    assert kinds == ["ok", "crash", "ok"]
    worker = Worker(task="tests.fuzz.misbehaving:answer")
    begin = time.monotonic()
    assert worker.ask(Work(Settings("hang")), 5).outcome.kind == "hang"
    assert time.monotonic() - begin < 30
    worker.stop()
    assert os.environ.get("MALLOC_PERTURB_") is None


@pytest.mark.skipif(guard() is None, reason="needs a C compiler and glibc")
@pytest.mark.parametrize(
    ("where", "told"), [("far", "Segmentation"), ("near", "wrote byte 3 of an array of 3")]
)
def test_a_write_beyond_a_tensor_ends_the_process(where: str, told: str) -> None:
    worker = Worker(task="tests.fuzz.misbehaving:answer", guarded=True)
    outcome = worker.ask(Work(Settings(where)), 120).outcome
    assert outcome.kind == "crash" and told in outcome.detail
    assert worker.ask(Work(STRICT, generate(0, SMALL)), 120).outcome.kind == "ok"
    worker.stop()


def test_nan_stays_in_constants_that_are_folded() -> None:
    """The constants are next to a normalization that is stitched. TVM's own folding loses the NaN."""
    case = Case(
        inputs=(Input((5, 100), "float32", "normal", 1),),
        steps=(
            Step("const", (), {"dtype": "float32", "fill": "special", "seed": 739945, "shape": [100]}),
            Step("clip", (1,), {"low": -3.0, "high": 100.0}),
            Step("softmax", (0,), {"axis": 1}),
        ),
        outputs=(3, 2),
    )
    assert check(case, Settings("llvm", nan_max="propagate")).kind == "ok"


def test_what_tvm_fuses_with_others_is_its_own_though_alone_it_is_stitched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TVM's formula of atanh loses small operands. Alone that is stitched, before a concat TVM's fusion has it."""
    monkeypatch.setattr(sound_arithmetic, "CANCELLING", ())
    case = Case(
        inputs=(Input((1, 1, 3), "float32", "special", 0),),
        steps=(
            Step("squeeze", (0,), {"axes": [1]}),
            Step("atanh", (0,), {}),
            Step("atan2", (2, 1), {}),
            Step("concat", (2, 3), {"axis": 1}),
        ),
        outputs=(4, 1),
        seed=70012768,
    )
    outcome = check(case, Settings("llvm"))
    assert outcome.kind == "tvm" and "-1.1754943508222875e-38" in outcome.detail, outcome
    assert check(case.but(outputs=(4,)), Settings("llvm")).kind == "ok"


@pytest.mark.parametrize(("alone", "verdict"), [("hang", "tvm"), ("ok", "hang"), ("crash", "hang")])
def test_a_hang_of_tvm_alone_is_its_own(monkeypatch: pytest.MonkeyPatch, alone: str, verdict: str) -> None:
    asked: list[Settings] = []

    def ask(_worker: Worker, work: Work, _timeout: float) -> Answer:
        asked.append(work.settings)
        return Answer(work.case, Outcome(alone), 1.0, work.seed)

    monkeypatch.setattr(Worker, "ask", ask)
    answer = Answer(generate(3, SMALL), Outcome("hang", "no answer"), 120.0, 3)
    attributed = fuzz._attributed(answer, Settings(stock=True), fuzz._options(["--stock"]))
    assert attributed.outcome.kind == verdict
    assert [(s.only_stock, s.stock) for s in asked] == [(True, False)]


def test_tvm_alone_stitches_nothing() -> None:
    outcome = check(generate(0, SMALL), Settings(only_stock=True, nan_max="any"))
    assert check(generate(0, SMALL), STRICT).stitched > 0 == outcome.stitched


def test_the_command_stitches(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--count", "3", "--seed", "0", "--no-shrink"]) == 0
    found = re.search(r"(\d+) % with stitch ops", capsys.readouterr().out)
    assert found is not None and int(found[1]) > 50
