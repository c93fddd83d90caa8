# SPDX-License-Identifier: Apache-2.0
"""Canonical descriptions describe the computation and its form, and nothing else.

Those on file are Relax's (and Relay's).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from stitch_testing.workloads.canonical import graph_lines, plan_data, plan_lines, rename
from stitch_testing.workloads.equivalents import describe_workload, main, workloads
from tests.graph.helpers import H200, build, graph, single
from tvm_stitch.device import device_model
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan.choose import choose_plan

EXPECTED = json.loads((Path(__file__).parents[2] / "data" / "same_plans.json").read_text())
WORKLOADS = workloads()
F32 = "float32"
X = ((64, 96), F32)


@pytest.mark.parametrize("name", WORKLOADS)
def test_relax_gives_the_graphs_and_plans_on_file(name: str) -> None:
    assert describe_workload(WORKLOADS[name]) == EXPECTED[name]


def test_the_file_is_of_these_workloads() -> None:
    assert list(EXPECTED) == list(WORKLOADS) and len(EXPECTED) >= 10
    kernels = [k for found in EXPECTED.values() for of_all in found["plans"].values() for k in of_all]
    assert any("phase" in line for k in kernels for line in k), "grid-wide plans"
    assert all(k[0].startswith("kernel: ") and k[-1].startswith("sha256 ") for k in kernels)


def normalised(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
    centred = emit(R.subtract(x, emit(R.mean(x, -1, True))))
    return [R.exp(centred), R.multiply(emit(R.sum(emit(R.multiply(x, y)), -1, True)), centred)]


def shuffled(found: StitchGraph, seed: int) -> StitchGraph:
    """Return the graph with other names, and its operators and outputs in another order that is topological as well."""
    rng = random.Random(seed)
    left, done = list(found.operators), []
    while left:
        ready = [op for op in left if all(t.producer is None or t.producer in done for t in op.inputs)]
        done.append(rng.choice(ready))
        left.remove(done[-1])
    for i, op in enumerate(found.operators):
        op.name, op.output.name = f"{seed}_{i}", f"{seed}"
    outputs = rng.sample(found.outputs, len(found.outputs))
    return StitchGraph("other", list(found.inputs), done, outputs)


def test_names_and_order_say_nothing() -> None:
    described = set()
    for seed in range(5):
        found = shuffled(graph(build(normalised, X, X)), seed)
        lines = graph_lines(found)
        assert graph_lines(rename(found)) == lines
        described.add((*lines, *plan_lines(choose_plan(found, H200))))
    assert len(described) == 1
    assert sorted(op.name for op in found.operators) == [f"v{i}" for i in range(len(found.operators))]


DIFFERENT: list[Callable[..., Any]] = [
    lambda emit, x, y: R.add(x, y),
    lambda emit, x, y: R.add(x, x),
    lambda emit, x, y: R.subtract(x, y),
    lambda emit, x, y: R.add(x, relax.const(1e-5, F32)),
    lambda emit, x, y: R.add(x, relax.const(2e-5, F32)),
    lambda emit, x, y: R.exp(x),
    lambda emit, x, y: R.sum(x, -1),
    lambda emit, x, y: R.sum(x, 0),
    lambda emit, x, y: R.max(x, -1),
    lambda emit, x, y: R.max(x, -1, True),
    lambda emit, x, y: R.astype(x, "float16"),
    lambda emit, x, y: R.permute_dims(x),
    lambda emit, x, y: R.strided_slice(x, [1], [0], [48]),
    lambda emit, x, y: R.strided_slice(x, [1], [1], [49]),
    lambda emit, x, y: R.concat([x, y], 1),
    lambda emit, x, y: R.concat([y, y], 1),
    lambda emit, x, y: R.exp(emit(R.reshape(x, (96, 64)))),
    lambda emit, x, y: [R.exp(x), R.exp(y)],
    lambda emit, x, y: [R.exp(x), R.exp(x)],
]


def test_what_is_computed_says_something() -> None:
    described = {"\n".join(graph_lines(graph(build(body, X, X)))) for body in DIFFERENT}
    assert len(described) == len(DIFFERENT)


def test_a_gather_is_written_with_its_indices() -> None:
    found = single(lambda emit, x, i: R.take(x, i, axis=0), X, ((5,), "int64"))
    line = graph_lines(found)[-2]
    assert line.startswith("v0: float32<5,96> = x") and "general, other axes" in line
    assert re.search(r"x\d\[[^\]]*x\d\[i0\]", line), line


def test_spellings_that_round_differently_are_one() -> None:
    def root(emit: Callable[..., Any], x: Any, y: Any) -> Any:
        return R.divide(relax.const(1.0, F32), emit(R.sqrt(x)))

    by_parts = graph_lines(graph(build(root, X, X)))
    assert by_parts[1].startswith("v0: float32<64,96> = sqrt(x0[i0, i1])")
    divided = single(lambda emit, x: R.divide(x, relax.const(96.0, F32)), X)
    multiplied = single(lambda emit, x: R.multiply(x, relax.const(float(np.float32(1) / 96), F32)), X)
    assert graph_lines(divided) == graph_lines(multiplied)


def test_plans_say_what_runs() -> None:
    found = rename(graph(build(normalised, X, X)))
    data = plan_data(choose_plan(found, H200))
    assert json.loads(json.dumps(data)) == data
    assert [o["operator"].split("<")[0] for o in data["operators"]] == [
        f"v{i}" for i in range(len(found.operators))
    ]
    on_cpu = plan_data(choose_plan(found, device_model("llvm")))
    assert on_cpu["mapping"] != data["mapping"] and on_cpu["operators"] == data["operators"]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = next(n for n in WORKLOADS if n.startswith("swiglu"))
    path = tmp_path / "made" / "plans.json"
    main(["--only", "swiglu", "--write", str(path)])
    assert json.loads(path.read_text()) == {name: EXPECTED[name]}
    main(["--only", "swiglu", "--plans"])
    whole = json.loads(capsys.readouterr().out)[name]
    assert whole["graphs"] == EXPECTED[name]["graphs"]
    assert any("pass 0" in line for line in whole["plans"]["llvm"][0])
