# SPDX-License-Identifier: Apache-2.0
"""Relay functions as unscheduled PrimFuncs and StitchGraphs, through TVM's operator definitions."""

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
"""A target that selects every operator's plain definition."""


def read_function(func: Any, target: tvm.target.Target, name: str) -> tuple[Any, StitchGraph]:
    """Return a Relay function as an unscheduled PrimFunc, with one or more blocks for each operator, and as a
    graph.

    Args:
        func: a function of tensors (tuples are flattened). Scalar constants in it become blocks without inputs.
        target: selects the definition of an operator if there are several. If that is not a tensor expression (a
            library's function, a loop nest written by hand), the plain definition is used.
        name: name of the graph.

    Raises:
        Unreadable: if there is no definition that can be read.
    """
    convert = tvm.get_global_func("relay.backend.LowerToPrimFunc", allow_missing=True)
    if convert is None:
        raise Unreadable("this TVM cannot lower a Relay function to an unscheduled one")
    func = typed(func.with_attr(PRIMITIVE, tvm.tir.IntImm("int32", 1)))
    reasons = []
    for chosen in (target, tvm.target.Target(GENERIC)):
        try:
            with operator_definitions, chosen, _facts_asked_once.shared(), _unwarned(chosen):
                lowered = convert(func, chosen)
            if lowered is None:
                raise Unreadable(NO_EXPRESSION)
            graph = read(lowered, name)
            _check_shapes(func.ret_type, graph)
            return lowered, graph
        except Unreadable as err:
            reasons.append(str(err))
        except Exception as err:  # whatever an operator's definition does, the model must compile
            reraise_fatal(err)
            if fault_at(err) is not None:
                raise
            message = error_text(err, LONGEST_REASON)
            bare = message.startswith("Failed to convert the Relay function")
            reasons.append(
                NO_EXPRESSION if bare else f"TVM does not lower it: {type(err).__name__}: {message}"
            )
    raise Unreadable(reasons[0])


def _check_shapes(ret_type: Any, graph: StitchGraph) -> None:
    """Raise Unreadable if a definition's results have other shapes than Relay's types. Its kernel would write out
    of bounds.

    Stock TVM fails when the kernel is called. A reduction over no axes is an example.
    """
    expected = tensor_types(ret_type)
    if len(expected) != len(graph.outputs):
        return
    for wanted, output in zip(expected, graph.outputs):
        shape, result = [str(e) for e in wanted.shape], [str(e) for e in output.shape]
        if shape != result:
            raise Unreadable(
                f"TVM's definition gives a result of shape ({', '.join(result)}), its type says ({', '.join(shape)})"
            )


def tensor_types(ty: Any) -> list[Any]:
    """Return the tensor types in a type, in order.

    Raises:
        Unreadable: for a type that holds other types.
    """
    if isinstance(ty, relay.TupleType):
        return [t for field in ty.fields for t in tensor_types(field)]
    if not isinstance(ty, relay.TensorType):
        raise Unreadable("an argument is not a tensor")
    return [ty]


@functools.cache
def _library_facts() -> Any:
    return tvm.support.libinfo()


@contextmanager
def _facts_kept() -> Iterator[None]:
    """Cache TVM's build information in this context. TVM asks for it at every lowering, which takes longer than the
    lowering.
    """
    with replaced(te_compiler, libinfo=_library_facts) if hasattr(te_compiler, "libinfo") else nullcontext():
        yield


_facts_asked_once = SharedContext(_facts_kept)


def _unwarned(target: tvm.target.Target) -> AbstractContextManager[None]:
    """Return a context without TVM's warning that the schedule of a plain definition is slow, which is not used
    here.
    """
    logger = logging.getLogger("strategy")
    return replaced(logger, disabled=logger.disabled or str(target.keys[0]) == "generic")


def exact_key(func: Any) -> str:
    """Return a key of equal functions. Structural equality also accepts floats that differ by less than 1e-9."""
    return str(tvm.ir.save_json(func))


class OpReader:
    """Reads calls of Relay operators, each kind of call once."""

    def __init__(self, target: tvm.target.Target):
        self.target = target
        self.cache: dict[str, StitchGraph | str] = {}

    def graph(self, call: Any, inputs: Sequence[Any], args: Sequence[Any]) -> StitchGraph:
        """Return the graph of a call.

        Args:
            call: a call of an operator.
            inputs: the expressions of the graph's inputs, in order.
            args: the call's arguments, with an index into ``inputs`` for each of the inputs. Tuples are lists.

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
        """Return the graph of a function of one operator. ``name`` is for messages.

        Raises:
            Unreadable: with the reason.
        """
        key = exact_key(func)
        if key not in self.cache:
            self.cache[key] = self._read(func, name)
        graph = self.cache[key]
        if isinstance(graph, str):
            raise Unreadable(graph)
        return graph

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
    """Return an operator's name without its dialect, for use in a function's name: ``"softmax"`` for
    ``"nn.softmax"``.
    """
    return name.rsplit(".", 1)[-1]
