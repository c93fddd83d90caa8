# SPDX-License-Identifier: Apache-2.0
"""The graphs of a module's stitch ops, one or several."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from stitch_testing.stitch_graphs import stitch_graph
from tests.graph.helpers import build
from tvm_stitch.config import StitchConfig


def test_modules_of_several_stitch_ops_are_refused() -> None:

    def body(emit: Any, x: Any) -> Any:
        for op in (R.exp, R.tanh, R.negative, R.sigmoid):
            x = emit(op(x))
        return [x]

    with pytest.raises(ValueError, match="use stitch_graphs"):
        stitch_graph(build(body, ((16, 24), "float32")), StitchConfig(max_operators=2))
