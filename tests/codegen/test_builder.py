# SPDX-License-Identifier: Apache-2.0
"""Numbers by themselves: TVM's simplifier does not put them back into what is computed of them."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_stitch import compat
from tvm_stitch.codegen import builder as B
from tvm_stitch.compat import tir


def test_constants_and_variables_stay() -> None:
    size = tir.Var("n", "int64")
    with B.kernel():
        assert B.number(3, "three") == 3
        assert B.number(size, "n") is size
        assert compat.int_value(B.number(B.i64(4), "four")) == 4


def test_what_is_of_known_sizes_stays() -> None:
    size = tir.Var("n", "int64")
    product = size * B.i64(2)
    with B.kernel():
        assert B.number_of(product, "product", (2, 3)) is product
        assert not compat.structural_equal(B.number_of(product, "product", (2, size)), product)


def kernel(named: Any) -> Any:
    """Build a kernel whose loop stores to indices with a division by a symbol in them."""
    size = tir.Var("n", "int64")
    out = tir.decl_buffer([size], "float32", "out")
    with B.kernel() as body, B.loop("parallel", size, "task") as task:
        place = named(tir.floordiv(task, size), "place")
        with B.loop("serial", size, "i") as i:
            B.store(out, compat.float_const(1.0, "float32"), [place + i])
    return tir.PrimFunc([out], body[0])


def stored_at(func: Any) -> list[str]:
    """Return the kinds of the expressions in the indices of a simplified kernel's stores."""
    mod = s_tir.transform.StmtSimplify()(tvm.IRModule({"main": func}))
    found: list[str] = []

    def note(store: Any) -> Any:
        found.extend(compat.kind(part) for index in store.indices for part in compat.parts(index))
        return store

    tvm_ffi.structural_map(mod["main"].body, (tirx.BufferStore, note), order="post")
    return found


def test_a_number_is_computed_once() -> None:
    assert "FloorDiv" in stored_at(kernel(B.bind))
    assert set(stored_at(kernel(B.number))) <= {"IntImm", "Add", "Var"}
