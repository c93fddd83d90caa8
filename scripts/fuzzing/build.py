# SPDX-License-Identifier: Apache-2.0
"""Build the Relax module of a case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import op

from .case import Case, Dim, Step, evaluate
from .data import constant, numpy_dtype
from .oracle import BINARY, UNARY


class Unbuildable(Exception):
    """Relax refuses the case: shapes that it cannot prove, or an operator that does not take the dtype."""


Names = dict[str, Any]


def expression(dim: Dim, names: Names) -> Any:
    """Return an extent as TIR."""
    if isinstance(dim, int):
        return dim
    value = evaluate(dim, names)
    return int(value) if isinstance(value, int) else value


def text_of(dim: Any) -> Dim:
    """Return an extent that Relax derived, as a case's text.

    Raises:
        Unbuildable: for expressions without such a text.
    """
    if isinstance(dim, (int, tirx.IntImm)):
        return int(dim)
    text = re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(dim)).replace("T.max", "max").replace("T.min", "min")
    if "T." in text or not re.fullmatch(r"[\w\s+*/%(),-]+", text):
        raise Unbuildable(f"an extent such as {text}")
    return text


def names_of(symbols: Sequence[str]) -> Names:
    """Return TIR variables for symbols, and the functions that their expressions may call."""
    return {**{s: tirx.Var(s, "int64") for s in symbols}, "max": tirx.max, "min": tirx.min}


def build(case: Case) -> tvm.IRModule:
    """Build the module, whose function is ``main``.

    Raises:
        Unbuildable: when Relax refuses it.
    """
    try:
        return _Module(case).module()
    except Exception as error:  # whatever TVM raises
        raise Unbuildable(f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}") from error


class _Module:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.builder = relax.BlockBuilder()
        self.names = names_of(case.symbols)

    def module(self) -> tvm.IRModule:
        case, builder = self.case, self.builder
        if case.inner:
            self._private(*case.inner)
        params = [parameter(i, p.shape, p.dtype, self.names) for i, p in enumerate(case.inputs)]
        values: list[Any] = list(params)
        ends = [*sorted(c for c in set(case.cuts) if 0 < c < len(case.steps)), len(case.steps)]
        with builder.function("main", params):
            begin = 0
            for end in ends:
                if case.plain or begin == end:
                    self._steps(values, begin, end, builder.emit)
                else:
                    with builder.dataflow():
                        self._steps(values, begin, end, builder.emit)
                        self._leave(values, begin, end)
                begin = end
            outputs = [values[i] for i in case.outputs]
            single = len(outputs) == 1 and not case.as_tuple
            builder.emit_func_output(outputs[0] if single else relax.Tuple(outputs))
        return builder.get()

    def _steps(self, values: list[Any], begin: int, end: int, emit: Callable[[Any], Any]) -> None:
        inner = self.case.inner
        index = begin
        while index < end:
            if inner and index == inner[0] and inner[1] <= end:
                args = [values[i] for i in self.free]
                result = emit(relax.Call(self.inner_function, args))
                values.extend(emit(relax.TupleGetItem(result, i)) for i in range(inner[1] - inner[0]))
                index = inner[1]
            else:
                step = self.case.steps[index]
                values.append(emit_step(step, [values[i] for i in step.args], self.names, emit))
                index += 1

    def _private(self, begin: int, end: int) -> None:
        """Build a private function of the steps, with the values they read as parameters and all results as a tuple."""
        case = self.case
        first = len(case.inputs) + begin
        plain = build_values(case.but(inner=None), begin)
        self.free = sorted({a for s in case.steps[begin:end] for a in s.args if a < first})
        names = names_of(case.symbols)
        params = [
            parameter(f"p{i}", shape, dtype, names)
            for i, (shape, dtype) in ((i, plain[i]) for i in self.free)
        ]
        values: dict[int, Any] = dict(zip(self.free, params))
        builder = self.builder
        with builder.function("inner", params, private=True):
            with builder.dataflow():
                for index in range(begin, end):
                    step = case.steps[index]
                    values[len(case.inputs) + index] = emit_step(
                        step, [values[a] for a in step.args], names, builder.emit
                    )
                result = builder.emit_output(relax.Tuple([values[first + i] for i in range(end - begin)]))
            self.inner_function = builder.emit_func_output(result)

    def _leave(self, values: list[Any], begin: int, end: int) -> None:
        """Return the values that leave their dataflow block: later blocks or the caller read them."""
        first = len(self.case.inputs)
        later = {a for step in self.case.steps[end:] for a in step.args} | set(self.case.outputs)
        for index in range(first + begin, first + end):
            if index in later:
                values[index] = self.builder.emit_output(values[index])


def parameter(name: int | str, shape: Sequence[Dim], dtype: str, names: Names) -> relax.Var:
    """Make a tensor parameter."""
    text = name if isinstance(name, str) else f"x{name}"
    return relax.Var(text, relax.TensorType([expression(d, names) for d in shape], dtype))


def build_values(case: Case, steps: int) -> list[tuple[list[Dim], str]]:
    """Return extents and dtypes of inputs and of the first steps. Tuples have neither.

    Raises:
        Unbuildable: when Relax refuses the case.
    """
    live = Live(case.symbols)
    for part in case.inputs:
        live.add_input(part.shape, part.dtype)
    for step in case.steps[:steps]:
        live.add(step)
    live.close()
    return list(zip(live.shapes, live.dtypes))


class Live:
    """Steps emitted one at a time, with the extents that Relax derives."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.names = names_of(symbols)
        self.builder = relax.BlockBuilder()
        self.builder._begin_dataflow_block()
        self.values: list[Any] = []
        self.shapes: list[list[Dim]] = []
        self.dtypes: list[str] = []

    def add_input(self, shape: Sequence[Dim], dtype: str) -> None:
        """Add a parameter."""
        self._note(parameter(len(self.values), shape, dtype, self.names))

    def add(self, step: Step) -> int:
        """Add a step, and return the number of its value.

        Raises:
            Unbuildable: when Relax refuses it. Nothing is added then.
        """
        try:
            args = [self.values[i] for i in step.args]
            self._note(emit_step(step, args, self.names, self.builder.emit))
        except Unbuildable:
            raise
        except Exception as error:
            raise Unbuildable(str(error).strip()[-200:]) from error
        return len(self.values) - 1

    def close(self) -> None:
        """End the function. Nothing can be added then."""
        self.builder._end_block()

    def _note(self, value: Any) -> None:
        kind = value.ty
        if isinstance(kind, relax.TensorType):
            if kind.shape is None or not isinstance(kind.shape, relax.ShapeExpr):
                raise Unbuildable("an unknown shape")
            shape = [text_of(e) for e in kind.shape.values]
            dtype = str(kind.dtype)
        else:
            shape, dtype = [], "tuple"
        self.values.append(value)
        self.shapes.append(shape)
        self.dtypes.append(dtype)


def emit_step(step: Step, args: list[Any], names: Names, emit: Callable[[Any], Any]) -> Any:
    """Emit one operator, with several bindings if it needs them."""
    attrs = step.attrs
    if step.op in UNARY:
        return emit(_unary(step.op, args[0], attrs))
    if step.op in BINARY:
        second = args[1] if len(args) > 1 else _scalar(attrs["scalar"], args[0])
        pair = (second, args[0]) if attrs.get("reverse") else (args[0], second)
        return emit(getattr(op, step.op)(*pair))
    return emit(_OTHER[step.op](args, attrs, names))


def _unary(name: str, x: Any, attrs: Mapping[str, Any]) -> Any:
    if name == "leakyrelu":
        return op.nn.leakyrelu(x, attrs.get("alpha", 0.01))
    return getattr(op, name)(x) if hasattr(op, name) else getattr(op.nn, name)(x)


def _scalar(value: Any, like: Any) -> Any:
    dtype = str(like.ty.dtype)
    return relax.const(value, dtype)


def _dims(values: Sequence[Dim], names: Names) -> list[Any]:
    return [expression(v, names) for v in values]


def _const(_args: list[Any], attrs: Mapping[str, Any], _names: Names) -> Any:
    array = constant(attrs)
    return relax.const(array.astype(numpy_dtype(attrs["dtype"])), attrs["dtype"])


def _slice(args: list[Any], a: Mapping[str, Any], names: Names) -> Any:
    rest = [_dims(a[k], names) for k in ("begin", "end", "strides")]
    return op.strided_slice(args[0], a["axes"], *rest, assume_inbound=bool(a.get("inbound")))


def _split(args: list[Any], a: Mapping[str, Any], names: Names) -> Any:
    sections = a["sections"]
    return op.split(args[0], sections if isinstance(sections, int) else _dims(sections, names), a["axis"])


def _pad(args: list[Any], a: Mapping[str, Any], _names: Names) -> Any:
    return op.nn.pad(args[0], [w for pair in a["widths"] for w in pair], pad_value=a["value"])


def _one_hot(args: list[Any], a: Mapping[str, Any], _names: Names) -> Any:
    on, off = (tirx.const(v, a["dtype"]) for v in a["values"])
    return op.one_hot(args[0], on, off, a["depth"], a["axis"])


def _pool(name: str) -> Callable[[list[Any], Mapping[str, Any], Names], Any]:
    def make(args: list[Any], a: Mapping[str, Any], _names: Names) -> Any:
        options = {
            "pool_size": tuple(a["window"]),
            "strides": tuple(a["strides"]),
            "padding": (a["padding"],) * 2,
        }
        return getattr(op.nn, name)(args[0], **options, count_include_pad=bool(a.get("count_all")))

    return make


def _reduce(name: str) -> Callable[[list[Any], Mapping[str, Any], Names], Any]:
    return lambda args, a, names: getattr(op, name)(args[0], axis=a["axis"], keepdims=a["keepdims"])


def _group_norm(args: list[Any], a: Mapping[str, Any], _names: Names) -> Any:
    return op.nn.group_norm(
        *args, num_groups=a["groups"], channel_axis=1, axes=a["axes"], epsilon=a["epsilon"]
    )


def _batch_norm(args: list[Any], a: Mapping[str, Any], _names: Names) -> Any:
    return relax.TupleGetItem(op.nn.batch_norm(*args, axis=1, epsilon=a["epsilon"], training=False), 0)


def _conv_transpose(args: list[Any], a: Mapping[str, Any], _names: Names) -> Any:
    function = getattr(op.nn, f"conv{len(a['strides'])}d_transpose")
    options = {name: list(a[name]) for name in ("strides", "padding", "output_padding", "dilation")}
    return function(*args, **options, groups=a["groups"])


def _attention(args: list[Any], a: Mapping[str, Any], _names: Names) -> Any:
    return op.nn.attention(*args, scale=a["scale"], causal_mask=a["causal"])


def _arange(_args: list[Any], a: Mapping[str, Any], names: Names) -> Any:
    return op.arange(*_dims([a["start"], a["end"], a["step"]], names), dtype=a["dtype"])


_OTHER: dict[str, Callable[[list[Any], Mapping[str, Any], Names], Any]] = {
    "const": _const,
    "full": lambda v, a, n: op.full(_dims(a["shape"], n), relax.const(a["value"], a["dtype"]), a["dtype"]),
    "arange": _arange,
    "where": lambda v, a, n: op.where(*v),
    "masked_fill": lambda v, a, n: op.masked_fill(v[0], v[1], relax.const(a["value"], str(v[0].ty.dtype))),
    "clip": lambda v, a, n: op.clip(
        v[0], tirx.const(a["low"], str(v[0].ty.dtype)), tirx.const(a["high"], str(v[0].ty.dtype))
    ),
    "cast": lambda v, a, n: op.astype(v[0], a["dtype"]),
    **{
        name: _reduce(name)
        for name in ("sum", "mean", "variance", "std", "prod", "max", "min", "argmax", "argmin")
    },
    "cumsum": lambda v, a, n: op.cumsum(v[0], a["axis"], exclusive=bool(a["exclusive"])),
    "softmax": lambda v, a, n: op.nn.softmax(v[0], a["axis"]),
    "log_softmax": lambda v, a, n: op.nn.log_softmax(v[0], a["axis"]),
    "layer_norm": lambda v, a, n: op.nn.layer_norm(*v, axes=a["axes"], epsilon=a["epsilon"]),
    "rms_norm": lambda v, a, n: op.nn.rms_norm(*v, axes=a["axes"], epsilon=a["epsilon"]),
    "group_norm": _group_norm,
    "instance_norm": lambda v, a, n: op.nn.instance_norm(
        *v, channel_axis=1, axes=a["axes"], epsilon=a["epsilon"]
    ),
    "batch_norm": _batch_norm,
    "reshape": lambda v, a, n: op.reshape(v[0], _dims(a["shape"], n)),
    "flatten": lambda v, a, n: op.flatten(v[0]),
    "expand_dims": lambda v, a, n: op.expand_dims(v[0], list(a["axes"])),
    "squeeze": lambda v, a, n: op.squeeze(v[0], list(a["axes"])),
    "broadcast_to": lambda v, a, n: op.broadcast_to(v[0], _dims(a["shape"], n)),
    "permute_dims": lambda v, a, n: op.permute_dims(v[0], list(a["axes"])),
    "flip": lambda v, a, n: op.flip(v[0], a["axis"]),
    "pixel_shuffle": lambda v, a, n: op.nn.pixel_shuffle(v[0], a["factor"]),
    "strided_slice": _slice,
    "split": _split,
    "item": lambda v, a, n: relax.TupleGetItem(v[0], a["index"]),
    "concat": lambda v, a, n: op.concat(v, a["axis"]),
    "stack": lambda v, a, n: op.stack(v, a["axis"]),
    "tile": lambda v, a, n: op.tile(v[0], list(a["repeats"])),
    "repeat": lambda v, a, n: op.repeat(v[0], a["repeats"], a["axis"]),
    "pad": _pad,
    "take": lambda v, a, n: op.take(v[0], v[1], a["axis"]),
    "gather_elements": lambda v, a, n: op.gather_elements(v[0], v[1], a["axis"]),
    "gather_nd": lambda v, a, n: op.gather_nd(v[0], v[1]),
    "one_hot": _one_hot,
    "tril": lambda v, a, n: op.tril(v[0], a["k"]),
    "triu": lambda v, a, n: op.triu(v[0], a["k"]),
    "matmul": lambda v, a, n: op.matmul(*v),
    "conv2d": lambda v, a, n: op.nn.conv2d(
        *v, strides=tuple(a["strides"]), padding=(a["padding"],) * 2, groups=a["groups"]
    ),
    "conv_transpose": _conv_transpose,
    "attention": _attention,
    "max_pool2d": _pool("max_pool2d"),
    "avg_pool2d": _pool("avg_pool2d"),
}
