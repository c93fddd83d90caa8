# SPDX-License-Identifier: Apache-2.0
"""Passes made of classes: their names, and what they raise."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

from tvm_stitch.support.module_pass import module_pass, named


class Trouble(Exception):
    """An error of no kind that TVM knows."""


@module_pass
class Marks:
    """Gives a module an attribute."""

    def __init__(self, value: int):
        self.value = value

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if self.value < 0:
            raise Trouble("a negative mark")
        return mod.with_attr("mark", self.value)


def test_a_pass_has_the_name_of_its_class_and_what_it_was_made_with() -> None:
    marks: Any = Marks(3)
    assert marks.info.name == "Marks"
    assert int(tvm.transform.Sequential([marks])(tvm.IRModule({})).attrs["mark"]) == 3


def test_an_error_comes_out_of_tvm_as_it_is() -> None:
    from tvm_stitch.support.interrupts import watched

    with pytest.raises(Trouble, match="a negative mark"), watched():
        tvm.transform.Sequential([Marks(-1)])(tvm.IRModule({}))


@tvm.instrument.pass_instrument
class Names:
    """The names of the passes that run, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, _mod: tvm.IRModule, info: Any) -> None:
        self.names.append(str(info.name))


def test_instances_have_names_of_their_own() -> None:
    marks: Any = Marks(3)
    assert named(marks, "Marks") is marks
    seen: Any = Names()
    with tvm.transform.PassContext(instruments=[seen]):
        assert int(named(marks, "Marks.three")(tvm.IRModule({})).attrs["mark"]) == 3
        named(tvm.relax.transform.Normalize(), "Normalize.first")(tvm.IRModule({}))
    assert seen.names[:2] == ["Marks.three", "Normalize.first"] and len(seen.names) == 3
