# SPDX-License-Identifier: Apache-2.0
"""The text of a program of torch.export runs no code."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.importers.torch.hostile import saved, text_of, with_text  # noqa: E402
from tvm_stitch.importers.torch.archive import load_program  # noqa: E402
from tvm_stitch.importers.torch.checked_program import UnsafeProgram, checked_program  # noqa: E402


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("program") / "model.pt2")


def _first(data: Any) -> Any:
    return data["graph_module"]["graph"]["nodes"][0]


def _size(data: Any, text: str) -> None:
    for value in data["graph_module"]["graph"]["sym_int_values"].values():
        value["as_expr"]["expr_str"] = text
    for value in data["graph_module"]["graph"]["tensor_values"].values():
        for size in value["sizes"]:
            if "as_expr" in size:
                size["as_expr"]["expr_str"] = text


def _signature(data: Any) -> Any:
    return data["graph_module"]["module_call_graph"][0]["signature"]


CODE = "__import__('os').system('touch {}')"
LEAF = {"type": None, "context": None, "children_spec": []}


def _keyword(data: Any, code: str) -> None:
    signature = _signature(data)
    spec = json.loads(signature["in_spec"])
    spec[1]["children_spec"][1]["context"] = json.dumps([f"k={code}"])
    signature |= {"in_spec": json.dumps(spec), "forward_arg_names": None}


def _class(kind: str, context: Any) -> Callable[[Any, str], None]:
    def change(data: Any, _code: str) -> None:
        spec = [1, {"type": kind, "context": json.dumps(context), "children_spec": [LEAF]}]
        _signature(data)["out_spec"] = json.dumps(spec)

    return change


def _parameter(data: Any, code: str) -> None:
    spec = next(s for s in data["graph_module"]["signature"]["input_specs"] if "parameter" in s)
    spec["parameter"]["parameter_name"] = f'a", {code}, "b'


def _operator(name: str) -> Callable[[Any, str], None]:
    return lambda data, _code: _first(data).update(target=name)


ATTACKS: dict[str, Callable[[Any, str], None]] = {
    "size": lambda data, code: _size(data, code),
    "size by attributes": lambda data, _: _size(data, "().__class__.__base__.__subclasses__()"),
    "size of a huge power": lambda data, _: _size(data, "Pow(Pow(Integer(9), Integer(9)), Integer(99999999))"),
    "size of huge powers": lambda data, _: _size(data, "9**9**9**9"),
    "size that is long": lambda data, _: _size(data, "1+" * 4000 + "1"),
    "node": lambda data, code: _first(data).update(name=f"a = {code}"),
    "result": lambda data, code: _first(data).update(outputs=[{"as_tensor": {"name": f"a = {code}; b"}}]),
    "operator": _operator("torch.hub.os.system"),
    "operator that maps a file": _operator("torch.ops.aten.from_file.default"),
    "operator that loads a library": _operator("torch.ops.load_library"),
    "operator of a delegate": _operator("torch.ops.higher_order.aoti_call_delegate"),
    "operator with an attribute": _operator("torch.ops.aten.add.__globals__"),
    "argument": lambda data, code: _signature(data).update(forward_arg_names=["x", f"k={code}"]),
    "keyword": _keyword,
    "class": _class("builtins.dict", [{"__enum__": True, "fqn": "antigravity:A", "name": "B"}]),
    "factory": _class(
        "collections.defaultdict",
        {"default_factory_module": "antigravity", "default_factory_name": "a", "dict_context": []},
    ),
    "parameter": _parameter,
    "range": lambda data, code: data["range_constraints"].update({code: {"min_val": 0, "max_val": 1}}),
    "symbol": lambda data, _: data["range_constraints"].update(u99999999999={"min_val": 0, "max_val": 1}),
}  # fmt: skip


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "operator with an attribute"])
def test_a_program_that_would_run_code_is_refused(ordinary: Path, tmp_path: Path, attack: str) -> None:
    trace = tmp_path / "trace"
    code = CODE.format(trace)
    path = with_text(ordinary, tmp_path / "model.pt2", lambda data: ATTACKS[attack](data, code))
    with pytest.raises(UnsafeProgram) as caught:
        load_program(path)
    assert not trace.exists() and len(str(caught.value)) < 200


def test_an_operator_is_no_attribute_of_one(ordinary: Path, tmp_path: Path) -> None:
    path = with_text(
        ordinary, tmp_path / "model.pt2", lambda data: ATTACKS["operator with an attribute"](data, "")
    )
    with pytest.raises(Exception, match="aten.add"):
        load_program(path)


def test_guards_are_dropped(ordinary: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    def guard(data: Any) -> None:
        data["guards_code"] = [CODE.format(trace)]

    program = load_program(with_text(ordinary, tmp_path / "model.pt2", guard))
    program.module()(torch.ones(4, 8), k=torch.ones(4, 8))
    assert not trace.exists()


@pytest.mark.parametrize("name", ["name", "target", "metadata", "fqn", "in_spec", "input", "as_name"])
def test_tensors_may_have_any_identifier(tmp_path: Path, name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {name}):\n    return {name}.exp()", scope)
    module = type("M", (torch.nn.Module,), {"forward": scope["forward"]})()
    torch.export.save(torch.export.export(module, (torch.ones(3),)), tmp_path / "model.pt2")
    (found,) = [load_program(tmp_path / "model.pt2").module()(torch.ones(3))]
    assert torch.equal(found, torch.ones(3).exp())


def test_sizes_that_export_writes_are_taken() -> None:
    for text in (
        "Symbol('s0', positive=True, integer=True)",
        "Add(Mul(Integer(2), Symbol('s37', positive=True, integer=True)), Integer(-1))",
        "FloorDiv(Symbol('u0', integer=True), Integer(4))",
        "Pow(Symbol('s0', positive=True, integer=True), Integer(2))",
        "Max(Integer(1), Pow(Integer(8), Integer(-1)))",
        "Eq(Mod(Symbol('s0', integer=True), Integer(2)), Integer(0))",
        "s0*2 + (s1 + 1)//4",
    ):
        assert checked_program({"expr_str": text})["expr_str"] == text


def test_a_check_leaves_the_text_as_it_is(ordinary: Path) -> None:
    data = text_of(ordinary)
    before = copy.deepcopy(data)
    checked_program(data)
    assert data == before
