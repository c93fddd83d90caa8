# SPDX-License-Identifier: Apache-2.0
"""Signatures survive their plain data, and refuse types that PyTorch does not write or know."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils import _pytree

from tvm_stitch.execution.tensors import TensorSpec
from tvm_stitch.front.signature import Signature


def tree(value: Any) -> Any:
    return _pytree.tree_structure(value)


def test_plain_data_has_all_of_it() -> None:
    specs = TensorSpec("x", (2, "n"), "float32"), TensorSpec("calls", (), "int64")
    given = Signature(
        specs,
        (*specs, specs[1]),
        {"calls": torch.zeros((), dtype=torch.int64)},
        ("calls",),
        tree(((), {"x": 0})),
        tree({"y": 0, "z": (0, None)}),
        returned={2: None},
        integers=(1,),
        of_torch=True,
    )
    found = Signature.of_dict(json.loads(json.dumps(given.to_dict())), given.state)
    assert {**vars(found), "state": 0} == {**vars(given), "state": 0}
    assert found.arguments == specs[:1] and found.results == specs
    assert found.placed((), {"x": 5}) == {0: 5}
    assert found.structured([1, 2], single=False) == {"y": 1, "z": (2, None)}


def test_arguments_that_are_constants() -> None:
    """They are given as they were exported, or not at all."""
    takes = tree(((0, 0, 0), {"flag": 0, "y": (0, 0)}))
    fixed = {1: ("scale", 2.0), 3: ("flag", True), 4: ("y_0", float("nan"))}
    given = Signature(takes=takes, fixed=fixed)
    assert Signature.of_dict(json.loads(json.dumps(given.to_dict())), {}).fixed.keys() == fixed.keys()
    assert given.placed((5, 2.0, 6), {"flag": True, "y": (float("nan"), 7)}) == {0: 5, 1: 6, 2: 7}
    assert given.placed((5,), {"scale": 2.0}) == {0: 5}
    for value, said in ((3.0, "3.0"), (None, "None"), (torch.ones(1), "a Tensor")):
        with pytest.raises(ValueError, match=f"'scale' is the constant 2.0 .* and {said} is given; compile"):
            given.placed((5, value), {})
        with pytest.raises(ValueError, match=f"'scale' is the constant 2.0 .* and {said} is given; compile"):
            given.placed((5,), {"scale": value})


class Pair:
    def __init__(self, one: Any, other: Any):
        self.one, self.other = one, other


def test_types_that_are_not_written_or_known() -> None:
    _pytree.register_pytree_node(Pair, lambda p: ([p.one, p.other], None), lambda xs, _: Pair(*xs))
    with pytest.raises(ValueError, match="takes or returns a type that PyTorch does not write: .*Pair"):
        Signature(returns=tree(Pair(1, 2))).to_dict()
    text = '[1, {"type": "nowhere.Pair", "context": "null", "children_spec": []}]'
    with pytest.raises(ValueError, match="a type that is not known here: .*nowhere.Pair"):
        Signature.of_dict({"call": {"returns": text}}, {})
