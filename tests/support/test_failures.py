# SPDX-License-Identifier: Apache-2.0
"""The meaning of an exception, and the text about it."""

from __future__ import annotations

import logging

import pytest
import tvm

from tvm_stitch.graph.extent import product
from tvm_stitch.graph.reader import Unreadable
from tvm_stitch.plan.iteration.alignment import Misaligned
from tvm_stitch.support.errors import StitchError
from tvm_stitch.support.failures import LONGEST_TEXT, Refusal, error_text, fault_at, reason_of


def raised(function: object, *args: object) -> Exception:
    try:
        function(*args)  # type: ignore[operator]
    except Exception as err:
        return err
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("kind", [Unreadable, Misaligned, Refusal])
def test_a_refusal_is_its_reason_and_nothing_to_warn_of(
    kind: type[Refusal], caplog: pytest.LogCaptureFixture
) -> None:
    assert reason_of(kind("rows disagree"), "softmax", strict=True) == "rows disagree"
    assert caplog.records == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_what_ends_a_program_passes_through(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        reason_of(kind(), "softmax")  # type: ignore[arg-type]


def test_a_programming_error_is_told_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    err = raised(product, 3)
    assert isinstance(err, TypeError) and str(fault_at(err)).startswith("graph/extent.py:")
    reason = reason_of(err, "softmax")
    assert "a fault in tvm_stitch, at graph/extent.py:" in reason and "not iterable" in reason
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "please report" in record.getMessage()
    with pytest.raises(StitchError, match="softmax cannot be stitched: TypeError") as caught:
        reason_of(err, "softmax", strict=True)
    assert caught.value.__cause__ is err


def test_an_error_of_tvms_is_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    err = raised(tvm.IRModule, 3)
    assert fault_at(err) is None
    assert reason_of(err, "softmax", strict=True).startswith(f"{type(err).__name__}: ")
    assert len(caplog.records) == 1
    caplog.clear()
    reason_of(err, "softmax", quiet=True)
    assert caplog.records == []


TRACED = """Traceback (most recent call last):
  6: tvm::runtime::PackedFuncObj::Extractor<tvm::runtime::PackedFuncSubObj<tvm::IRModule (tvm::transform::Pass)>::Call
  5: tvm::transform::Pass::operator()(tvm::IRModule) const
  0: _ZN3tvm7runtime6deta
  File "/somewhere/src/runtime/library_module.cc", line 87
TVMError: Assert fail: (T.tvm_struct_get(p0, 0, 10, "uint64") == 1), p0.strides: expected to be compact array
  Did you pass a view?
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one line", "one line"),
        ("\n\n  Check failed: a == b\n  (3 vs. 4) : they differ\n", "Check failed: a == b (3 vs. 4) : they differ"),
        (TRACED, 'Assert fail: (T.tvm_struct_get(p0, 0, 10, "uint64") == 1), p0.strides: expected to be compact array '
                 "Did you pass a view?"),
        ("Did you forget to bind?\n    Variable `x` is accessed by the host\n# from tvm.script import tirx as T\n"
         "@T.prim_func\ndef main(x: T.handle):\n    T.evaluate(0)",
         "Did you forget to bind? Variable `x` is accessed by the host"),
        ("", "TVMError"),
    ],
)  # fmt: skip
def test_the_lines_that_say_what_is_wrong(text: str, said: str) -> None:
    class TVMError(Exception):
        pass

    assert error_text(TVMError(text)) == said


def test_the_text_of_a_real_error_of_tvms() -> None:
    @tvm.transform.module_pass(opt_level=0, name="Raises")
    def fail(_mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        raise ValueError("extents differ:\n  3 and 4")

    err = raised(tvm.transform.Sequential([fail]), tvm.IRModule())
    assert error_text(err) == "extents differ: 3 and 4"


def test_a_long_text_is_cut() -> None:
    text = error_text(ValueError("word " * 1000))
    assert len(text) == LONGEST_TEXT and text.endswith(" ...")


def test_a_missing_key() -> None:
    assert error_text(raised({}.__getitem__, "axis")) == "no 'axis'"
