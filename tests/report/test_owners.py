# SPDX-License-Identifier: Apache-2.0
"""The kernels that operators belong to, and the names that they inherit."""

from __future__ import annotations

from tvm_stitch.report.owners import Step, inherited, owners

CHAIN = [Step(("a",), ()), Step(("b",), (0,)), Step(("c",), (1,)), Step(("d",), (1, 2))]


def test_what_no_kernel_writes_is_computed_where_it_is_read() -> None:
    assert owners(CHAIN, {3: {7}}) == [(7,), (7,), (7,), (7,)]
    assert owners(CHAIN, {0: {1}, 3: {7}}) == [(1,), (7,), (7,), (7,)]


def test_what_two_kernels_read_is_computed_in_both() -> None:
    assert owners(CHAIN, {2: {4}, 3: {7}}) == [(4, 7), (4, 7), (4,), (7,)]


def test_views_and_what_is_not_needed_have_no_kernel() -> None:
    steps = [*CHAIN, Step(("unused",), (0,))]
    assert owners(steps, {1: {0}, 3: {7}}, frozenset({"c"})) == [(0,), (0,), (), (7,), ()]


def test_names_come_from_the_first_reader_that_has_one() -> None:
    assert inherited(["", "", "sum", "norm"], CHAIN) == ["sum", "sum", "sum", "norm"]
    assert inherited(["", "", "", ""], CHAIN) == ["", "", "", ""]
