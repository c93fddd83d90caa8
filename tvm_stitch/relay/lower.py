# SPDX-License-Identifier: Apache-2.0
"""What Relay functions compute, as unscheduled PrimFuncs and StitchGraphs, through TVM's own operator definitions."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tvm
from tvm import relay
from tvm.relay.backend import te_compiler

from ..graph.ir import StitchGraph
from ..graph.reader import Unreadable, read
from ..support.failures import error_text, fault_at, reason_of, reraise_fatal
from ..support.one_at_a_time import operator_definitions
from .global_function import replaced
from .shared_context import SharedContext

PRIMITIVE = "Primitive"


def typed(func: Any) -> Any:
    """Return the function with all types inferred."""
    return relay.transform.InferType()(tvm.IRModule.from_expr(func))["main"]


LONGEST_REASON = 200
NO_EXPRESSION = "TVM has no tensor expression for it"
GENERIC = "llvm -keys=generic"
"""A target that takes every operator's plain definition."""


def read_function(func: Any, target: Any, name: str) -> tuple[Any, StitchGraph]:
    """A Relay function of operators as an unscheduled PrimFunc, one block or more for each, and what it computes.

    Args:
        func: a function of tensors (tuples are flattened); scalar constants in it become blocks without inputs.
        target: says which definition of an operator is taken, where there are several. Where that is no tensor
            expression (a library's function, a loop nest written by hand), the plain definition is.
        name: of the graph.

    Raises:
        Unreadable: when there is no definition that can be read.
    """
    convert = tvm.get_global_func("relay.backend.LowerToPrimFunc", allow_missing=True)
    if convert is None:
        raise Unreadable("this TVM cannot lower a Relay function to an unscheduled one")
    func = typed(func.with_attr(PRIMITIVE, tvm.tir.IntImm("int32", 1)))
    reasons = []
    for chosen in (target, tvm.target.Target(GENERIC)):
        try:
            with operator_definitions, chosen, _facts_asked_once.shared(), _unwarned(chosen):
                found = convert(func, chosen)
            if found is None:
                raise Unreadable(NO_EXPRESSION)
            graph = read(found, name)
            _check_shapes(func.ret_type, graph)
            return found, graph
        except Unreadable as err:
            reasons.append(str(err))
        except Exception as err:  # whatever an operator's definition does, the model compiles without us
            reraise_fatal(err)
            if fault_at(err) is not None:
                raise
            said = error_text(err, LONGEST_REASON)
            bare = said.startswith("Failed to convert the Relay function")
            reasons.append(NO_EXPRESSION if bare else f"TVM does not lower it: {type(err).__name__}: {said}")
    raise Unreadable(reasons[0])


def _check_shapes(ret_type: Any, graph: StitchGraph) -> None:
    """Refuse a definition whose results have other shapes than Relay's types: its kernel would write past its outputs.

    Stock TVM finds that out when the kernel is called. A reduction over no axes is one.
    """
    expected = tensor_types(ret_type)
    if len(expected) != len(graph.outputs):
        return
    for wanted, output in zip(expected, graph.outputs):
        shape, made = [str(e) for e in wanted.shape], [str(e) for e in output.shape]
        if shape != made:
            raise Unreadable(
                f"TVM's definition gives a result of shape ({', '.join(made)}), its type says ({', '.join(shape)})"
            )


def tensor_types(ty: Any) -> list[Any]:
    """Return the tensor types in a type, in order.

    Raises:
        Unreadable: for a type that holds others.
    """
    if isinstance(ty, relay.TupleType):
        return [t for field in ty.fields for t in tensor_types(field)]
    if not isinstance(ty, relay.TensorType):
        raise Unreadable("an argument is no tensor")
    return [ty]


@functools.cache
def _library_facts() -> Any:
    return tvm.support.libinfo()


@contextmanager
def _facts_kept() -> Iterator[None]:
    """TVM asks how it was built for every shape that it lowers, which takes longer than the lowering."""
    with replaced(te_compiler, libinfo=_library_facts) if hasattr(te_compiler, "libinfo") else nullcontext():
        yield


_facts_asked_once = SharedContext(_facts_kept)


def _unwarned(target: Any) -> AbstractContextManager[None]:
    """TVM warns of every plain definition that its schedule is slow; ours is another one."""
    logger = logging.getLogger("strategy")
    return replaced(logger, disabled=logger.disabled or str(target.keys[0]) == "generic")


def exact_key(func: Any) -> str:
    """Equal for equal functions only: structural equality takes floats for equal that differ by less than 1e-9."""
    return str(tvm.ir.save_json(func))


class OpReader:
    """Reads calls of Relay operators, each kind of call once."""

    def __init__(self, target: Any):
        self.target = target
        self.cache: dict[str, StitchGraph | str] = {}

    def graph(self, call: Any, inputs: Sequence[Any], args: Sequence[Any]) -> StitchGraph:
        """What a call computes.

        Args:
            call: a call of an operator.
            inputs: the expressions that the graph's inputs are to stand for, in order.
            args: the call's arguments, with an index into ``inputs`` for each of those; tuples are lists.

        Raises:
            Unreadable: with the reason.
        """
        params = [relay.Var(f"p{i}", type_of(e)) for i, e in enumerate(inputs)]

        def fill(arg: Any) -> Any:
            if isinstance(arg, list):
                return relay.Tuple([fill(a) for a in arg])
            return params[arg] if isinstance(arg, int) else arg

        body = relay.Call(call.op, [fill(a) for a in args], call.attrs, call.type_args)
        return self.of_function(relay.Function(params, body), short_name(call.op.name))

    def of_function(self, func: Any, name: str) -> StitchGraph:
        """What a function of one operator computes; ``name`` is for messages.

        Raises:
            Unreadable: with the reason.
        """
        key = exact_key(func)
        if key not in self.cache:
            self.cache[key] = self._read(func, name)
        found = self.cache[key]
        if isinstance(found, str):
            raise Unreadable(found)
        return found

    def _read(self, func: Any, name: str) -> StitchGraph | str:
        try:
            _, graph = read_function(func, self.target, name)
        except Exception as err:  # whatever an operator's definition does, the model compiles without us
            return reason_of(err, name)
        if len(graph.inputs) != len(func.params):
            return "a parameter is not read, or both read and written"
        return graph


def type_of(value: Any) -> Any:
    """Return the tensor type of a value: an expression, or ``(call, index)`` for one result of several."""
    if isinstance(value, tuple):
        return value[0].checked_type.fields[value[1]]
    return value.checked_type


def short_name(name: str) -> str:
    """Return an operator's name without its dialect, fit for a function's name: ``"nn.softmax"`` is ``"softmax"``."""
    return name.rsplit(".", 1)[-1]
