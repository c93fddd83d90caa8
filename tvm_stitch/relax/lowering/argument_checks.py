# SPDX-License-Identifier: Apache-2.0
"""One check for each tensor argument of a kernel, in a function that all kernels of a module share.

TVM's function for a kernel checks each property of each tensor in place. Three tensors take about 35 checks, each
with a branch and an error of its own. LLVM spends a quarter of its time on them in a small model.

The shared function checks everything that does not depend on the kernel's sizes, and LLVM does not inline it. It
checks the argument's type, and the tensor's rank, dtype and device. It also checks that the tensor is compact, begins
at its data, and has data. The kernel then finds the address of a tensor without a branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tvm
from tvm import tirx
from tvm.script import tirx as T

from ... import compat
from ...compat.script import Script

PACKED = 1
"""The calling convention of functions whose arguments may come from anywhere."""
SCOPE = "compute_scope"
"""Key of TVM's attribute around a kernel's body. LLVM's code has a function for the body, which is not inlined."""
NAME = "tvm_stitch_argument"
"""Name of the function that checks an argument."""
MOST_AXES = 6
"""The most axes of a tensor that the function checks."""
ANY_EXTENT = -1
"""An extent that is not checked."""
ON_ARGUMENT = " on argument #"
"""Text of TVM's messages before the argument's number. The call follows the number."""
EXPECTED = "`,\n  expected "
"""Text of TVM's messages before the expected value."""
TYPE, RANK, DTYPE, EXTENT = "Mismatched type", ".ndim", ".dtype", ".shape["
DEVICE, DEVICE_NUMBER = ".device_type", ".device_id"
WANTED = {
    TYPE: "Tensor",
    ".strides": "to be compact array",
    ".byte_offset": "0",
    " data pointer is NULL": "non-NULL data pointer",
}
"""By subject, the expected value in messages of the checks that the function takes over."""
FITTING = (
    "a compact tensor of this shape and type, on the kernel's kind of device and where the first one is, that begins"
    " where its data do"
)
"""The expected value in the message of a failed check."""


@Script.prim_func(private=True, s_tir=True)
def _argument(
    result: T.handle("int32", "global"),  # type: ignore[valid-type]
    args: T.handle,
    at: T.int32,
    rank: T.int32,
    dtype: T.int32,
    device: T.int32,
    like: T.int32,
    extent_0: T.int64,
    extent_1: T.int64,
    extent_2: T.int64,
    extent_3: T.int64,
    extent_4: T.int64,
    extent_5: T.int64,
) -> T.int32:
    # LLVM does not inline the function that it gets for a scope.
    with T.attr({"compute_scope": "tvm_stitch_argument_compute_"}):
        outcome = T.decl_buffer((1,), "int32", data=result)
        outcome[0] = 1
        kind: T.let[T.int32] = T.tvm_struct_get(args, at, 13, "int32")
        if kind != 70 and kind != 7 and kind != 4:  # a tensor, or a pointer to a DLTensor, typed or not
            return 0
        given: T.let[T.handle] = T.tvm_struct_get(args, at, 15, T.handle().ty)
        if T.isnullptr(given):
            return 0
        tensor: T.let[T.handle] = T.handle_add_byte_offset(given, T.Select(kind == 70, 24, 0))
        if (
            T.tvm_struct_get(tensor, 0, 4, "int32") != rank
            or T.tvm_struct_get(tensor, 0, 10, "int32") != device
        ):
            return 0
        other: T.let[T.handle] = T.handle_add_byte_offset(
            T.tvm_struct_get(args, like, 15, T.handle().ty),
            T.Select(T.tvm_struct_get(args, like, 13, "int32") == 70, 24, 0),
        )
        if T.tvm_struct_get(tensor, 0, 9, "int32") != T.tvm_struct_get(other, 0, 9, "int32"):
            return 0
        code: T.let[T.int32] = T.Cast("int32", T.tvm_struct_get(tensor, 0, 5, "uint8"))
        bits: T.let[T.int32] = T.Cast("int32", T.tvm_struct_get(tensor, 0, 6, "uint8"))
        lanes: T.let[T.int32] = T.Cast("int32", T.tvm_struct_get(tensor, 0, 7, "uint16"))
        if code + bits * 256 + lanes * 65536 != dtype:
            return 0
        shape: T.let[T.handle("int64", "global")] = T.tvm_struct_get(
            tensor, 0, 2, T.handle("int64", "global").ty
        )
        extents = T.alloc_buffer((MOST_AXES,), "int64")
        extents[0] = extent_0
        extents[1] = extent_1
        extents[2] = extent_2
        extents[3] = extent_3
        extents[4] = extent_4
        extents[5] = extent_5
        for axis in range(rank):
            if extents[axis] >= T.int64(0) and extents[axis] != T.tvm_struct_get(shape, axis, 17, "int64"):
                return 0
        if T.tvm_struct_get(tensor, 0, 8, "uint64") != T.uint64(0):
            return 0
        strides: T.let[T.handle("int64", "global")] = T.tvm_struct_get(
            tensor, 0, 3, T.handle("int64", "global").ty
        )
        size = T.alloc_buffer((1,), "int64")
        size[0] = T.int64(1)
        for behind in range(rank):
            inner: T.let[T.int32] = rank - 1 - behind
            extent: T.let[T.int64] = T.tvm_struct_get(shape, inner, 17, "int64")
            if not T.isnullptr(strides):
                if extent != T.int64(1) and T.tvm_struct_get(strides, inner, 17, "int64") != size[0]:
                    return 0
            size[0] = size[0] * extent
        data: T.let[T.handle] = T.tvm_struct_get(tensor, 0, 1, T.handle().ty)
        if size[0] != T.int64(0) and T.isnullptr(data):
            return 0
        outcome[0] = 0
    return 0


def with_shared_checks(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a lowered module with one check for each tensor that its functions get.

    The functions are the results of TVM's ``MakePackedAPI``. Unexpected checks stay as they are.
    """
    gvar = tvm.ir.GlobalVar(NAME)
    changed: dict[Any, Any] = {}
    for name, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and func.attrs and func.attrs.get("calling_conv") == PACKED:
            checks = _Checks(gvar, func)
            if checks.tensors:
                changed[name] = checks.rewritten()
    if not changed:
        return mod
    mod = mod.clone()
    for name, func in changed.items():
        mod.update_func(name, func)
    mod.update_func(gvar, _argument.with_attr("target", next(iter(changed.values())).attrs["target"]))
    return mod


class _Asked(NamedTuple):
    """A check of TVM's: the argument's number, the checked property, the call in its message, and its condition."""

    number: str
    subject: str
    call: Sequence[Any]
    condition: Any


class _Tensor(NamedTuple):
    """The properties that the checks of a tensor require, without symbolic extents.

    ``is_near`` is True if the tensor has to be on the device of another tensor.
    """

    rank: int
    dtype: int
    device: int
    extents: Mapping[int, int]
    is_near: bool


class _Checks:
    """The checks of a function's arguments."""

    def __init__(self, gvar: tvm.ir.GlobalVar, func: tirx.PrimFunc):
        self.gvar, self.func = gvar, func
        self.asked: dict[Any, _Asked] = {}
        self.checked: set[str] = set()
        self.found = tirx.decl_buffer([1], "int32", "found", scope="global")
        of: dict[str, dict[str, _Asked]] = {}
        for step in _steps(func.body):
            asked = _asked(step)
            if asked is not None:
                self.asked[step] = asked
                of.setdefault(asked.number, {}).setdefault(asked.subject, asked)
        self.tensors = {
            number: tensor for number, each in of.items() if (tensor := _tensor(each)) is not None
        }
        """By number, the arguments whose checks one shared check replaces."""
        first = next(iter(self.tensors), None)
        others = list(self.tensors)[1:]
        knows = first is not None and not self.tensors[first].is_near
        self.first = first if knows and all(self.tensors[each].is_near for each in others) else None
        """The tensor on whose device the others have to be, if the function checks it before them."""

    def rewritten(self) -> tirx.PrimFunc:
        """Return the function with one check for each tensor."""
        return self.func.with_body(tirx.SeqStmt([tirx.AllocBuffer(self.found), self._of(self.func.body)]))

    def _of(self, body: tirx.Stmt) -> tirx.Stmt:
        name = compat.kind(body)
        if name == "SeqStmt":
            return tirx.SeqStmt([part for step in compat.elements(body.seq) for part in self._step(step)])
        if name == "AttrStmt" and body.attr_key != SCOPE:
            return tirx.AttrStmt(body.node, body.attr_key, body.value, self._of(body.body))
        return body

    def _step(self, step: tirx.Stmt) -> list[tirx.Stmt]:
        asked = self.asked.get(step)
        if asked is None:
            return [_without_branch(step) if compat.kind(step) == "Bind" else self._of(step)]
        tensor = self.tensors.get(asked.number)
        if tensor is None or (
            asked.subject.startswith(EXTENT)
            and _axis(asked.subject) not in tensor.extents
            or asked.subject == DEVICE_NUMBER
            and self.first is None
        ):
            return [step]
        if asked.number in self.checked:
            return []
        self.checked.add(asked.number)
        return self._check(asked, tensor)

    def _check(self, asked: _Asked, tensor: _Tensor) -> list[Any]:
        like = asked.number if self.first is None else self.first
        numbers = (int(asked.number), tensor.rank, tensor.dtype, tensor.device, int(like))
        extents = (tensor.extents.get(axis, ANY_EXTENT) for axis in range(MOST_AXES))
        args = [
            self.found.data,
            self.func.params[1],
            *(tirx.const(number, "int32") for number in numbers),
            *(tirx.const(extent, "int64") for extent in extents),
        ]
        condition = tirx.EQ(tirx.BufferLoad(self.found, [compat.const(0, "int32")]), compat.const(0, "int32"))
        said = [tvm.ir.StringImm(part) for part in (f"{TYPE}{ON_ARGUMENT}", asked.number)]
        message = [*said, *asked.call, tvm.ir.StringImm(f"{EXPECTED}{FITTING}")]
        return [
            tirx.Evaluate(tvm.ir.Call(self.gvar, args, ret_ty=_argument.ty.ret)),
            tirx.AssertStmt(
                condition, tvm.ir.StringImm("TypeError"), message
            ),  # TVM takes the condition first
        ]


def _without_branch(step: tirx.Stmt) -> tirx.Stmt:
    """Return the binding of a tensor's address, computed without a branch on the argument's type."""
    value = step.value
    if not compat.is_choice(value):
        return step
    condition, moved, position = value.args
    if compat.kind(moved) != "Call" or compat.call_name(moved) != "handle_add_byte_offset":
        return step
    given, offset = moved.args
    if not compat.structural_equal(given, position):
        return step
    offset = tirx.Select(condition, offset, compat.const(0, compat.dtype_of(offset)))
    return tirx.Bind(step.var, compat.remake_call(moved, [given, offset]))


def _steps(body: tirx.Stmt) -> list[tirx.Stmt]:
    """Return the statements around a kernel's body."""
    statements: list[Any] = []
    left = [body]
    while left:
        step = left.pop()
        name = compat.kind(step)
        if name == "SeqStmt":
            left += reversed(compat.elements(step.seq))
        elif name == "AttrStmt" and step.attr_key != SCOPE:
            left.append(step.body)
        else:
            statements.append(step)
    return statements


def _asked(step: tirx.Stmt) -> _Asked | None:
    """Return the check of an argument that a statement makes, or None for any other statement."""
    check = step.then_case if compat.kind(step) == "IfThenElse" else step
    if compat.kind(check) != "AssertStmt":
        return None
    parts = compat.elements(check.message_parts)
    said, at = "", 0
    while not said.endswith(ON_ARGUMENT):  # stops early, because the later parts are long
        if at + 4 >= len(parts):
            return None
        said, at = said + parts[at].value, at + 1
    said = said.removesuffix(ON_ARGUMENT)
    subject = next(
        (subject for subject in (RANK, DTYPE, DEVICE, DEVICE_NUMBER, *WANTED) if said.endswith(subject)), ""
    )
    if not subject and said.endswith("]") and EXTENT in said:
        subject = said[said.rindex(EXTENT) :]
    if not subject or subject in WANTED and not _is_wanted(subject, parts, at + 3):
        return None
    return _Asked(parts[at].value, subject, parts[at + 1 : at + 3], check.condition)


def _is_wanted(subject: str, parts: Sequence[Any], at: int) -> bool:
    """Return True if a check's message, from a part on, expects the value in ``WANTED``."""
    return "".join(part.value for part in parts[at:]) == f"{EXPECTED}{WANTED[subject]}"


def _axis(subject: str) -> int:
    """Return the axis whose extent is checked."""
    return int(subject.removeprefix(EXTENT).removesuffix("]"))


def _tensor(of: Mapping[str, _Asked]) -> _Tensor | None:
    """Return the properties that an argument's checks require, or None if the shared function checks something else."""
    if any(subject not in of for subject in WANTED):
        return None
    rank, dtype, device = (
        _constants(of[each].condition) if each in of else () for each in (RANK, DTYPE, DEVICE)
    )
    if len(rank) != 1 or len(dtype) != 3 or len(device) != 1 or rank[0] > MOST_AXES:
        return None
    extents: dict[int, int] = {}
    for subject, asked in of.items():
        if subject.startswith(EXTENT):
            extents |= {_axis(subject): value for value in _constants(asked.condition)}
    code, bits, lanes = dtype
    return _Tensor(rank[0], code + (bits << 8) + (lanes << 16), device[0], extents, DEVICE_NUMBER in of)


def _constants(condition: Any) -> tuple[int, ...]:
    """Return the constants that a condition requires values to equal, or an empty tuple for any other condition."""
    name = compat.kind(condition)
    if name == "And":
        a, b = _constants(condition.a), _constants(condition.b)
        return (*a, *b) if a and b else ()
    if name == "EQ":
        numbers = [n for n in map(compat.int_value, (condition.a, condition.b)) if n is not None]
        return tuple(numbers) if len(numbers) == 1 else ()
    return ()
