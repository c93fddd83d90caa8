# SPDX-License-Identifier: Apache-2.0
"""Check the text of a program of torch.export before PyTorch makes a graph of it.

PyTorch evaluates sizes as Python expressions, and writes names into Python functions. It looks operators up by any
path below ``torch``, and imports modules that types of inputs name. So a program's text could run any code. The
program is checked as JSON: names are identifiers, sizes are arithmetic, operators are PyTorch's own.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

LONGEST_SIZE = 4096
"""Most characters of the expression of a size."""
GREATEST_POWER = 64
"""Greatest product of the exponents in the expression of a size, and greatest number of bits it is shifted by."""
MOST_SYMBOLS = 1_000_000
"""Greatest number in the name of a symbol. PyTorch counts up to it."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PATH = re.compile(r"[^\"'\\\x00-\x1f\x7f\u2028\u2029]*")
_ATOM = re.compile(r"[A-Za-z0-9_.+-]*", re.ASCII)
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims|prim|quantized_decomposed|torchvision)\.([A-Za-z_]\w*)(\.\w+)?", re.ASCII
)
_OWN = re.compile(r"torch\.ops\.tvm_stitch\.(lstm|gru|rnn_tanh|rnn_relu)\.default", re.ASCII)
"""Recurrent layers of a symbolic number of steps (``recurrent.py``)."""
_HIGHER_ORDER = re.compile(r"torch\.ops\.higher_order\.([A-Za-z]\w*)", re.ASCII)
_REFUSED = frozenset({"from_file", "_print", "save"})
"""Operators that touch files."""
_WITH_GRAPHS = frozenset(
    "associative_scan auto_functionalized auto_functionalized_v2 checkpoint cond flex_attention hints_wrapper "
    "invoke_subgraph map_impl out_dtype scan strict_mode tag_activation_checkpoint while_loop wrap "
    "wrap_activation_checkpoint wrap_with_autocast wrap_with_set_grad_enabled".split()
)
_ON_SIZES = frozenset(
    [f"_operator.{name}" for name in "eq ne le ge lt gt neg pos mul add sub floordiv mod pow truediv".split()]
    + [f"_operator.{name}" for name in "and_ or_ lshift rshift getitem".split()]
    + ["math.trunc", *(f"torch.sym_{name}" for name in "not int float ite max min sqrt".split())]
)
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift", "RShift"})
_FUNCTIONS = _POWERS | frozenset(
    "Abs Add And Boolean BooleanFalse BooleanTrue CeilDiv CeilToInt CleanDiv Equality Eq Float FloatTrueDiv FloorDiv "
    "FloorToInt Ge Gt GreaterThan Identity Integer IntTrueDiv IsNonOverlappingAndDenseIndicator ITE Le LessThan Lt Max "
    "Min Mod ModularIndexing Mul Ne Not Or Piecewise PythonMod Rational Relational RoundDecimal RoundToInt "
    "StrictGreaterThan StrictLessThan Symbol ToFloat TruncToFloat TruncToInt Tuple Unequality Where Xor ceiling "
    "ExprCondPair floor".split()
)
_ARITHMETIC = (
    ast.Expression, ast.Name, ast.Load, ast.Constant, ast.Call, ast.keyword, ast.Tuple, ast.BinOp, ast.UnaryOp,
    ast.Compare, ast.BoolOp, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip
_BY_NAME = (
    "tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values",
)  # fmt: skip
_BY_KEY = ("as_string_to_argument", "treespec_namedtuple_fields", "opset_version")


class UnsafeProgram(ValueError):
    """A program that could run code, or that needs Python objects. The message says which part of it."""


def checked_program(data: Any) -> Any:
    """Return a program without the parts that are not needed, after a check of the rest.

    Stack traces, guards and users' metadata are dropped: PyTorch would run guards. Names of modules stay.

    Args:
        data: the program as ``json.loads`` returns it. It stays as it is.

    Raises:
        UnsafeProgram: if PyTorch could run code of it.
    """
    if not isinstance(data, dict):
        raise UnsafeProgram("it is no program")
    try:
        found = _checked(data)
    except RecursionError:
        raise UnsafeProgram("its text is nested too deeply") from None
    return {**found, "guards_code": []}


def _checked(value: Any) -> Any:
    if isinstance(value, list):
        return [_checked(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _CHECKS.get(key, _checked)(each) for key, each in value.items()}


def _checked_by_name(values: Any) -> Any:
    """Check values by the names of a graph's tensors and sizes."""
    if not isinstance(values, dict):
        raise UnsafeProgram("it has values without names")
    return {_check_name(name): _checked(value) for name, value in values.items()}


def _checked_by_symbol(ranges: Any) -> Any:
    """Check the ranges of symbols. Those of sizes such as ``s0 + s1``, which PyTorch does not read, are dropped."""
    if not isinstance(ranges, dict):
        raise UnsafeProgram("it has ranges without symbols")
    for name in ranges:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            _check_size(name)
    return _checked_by_name({name: each for name, each in ranges.items() if _NAME.fullmatch(name)})


def _checked_by_key(values: Any) -> Any:
    """Check values by keys that are shown as strings only."""
    if not isinstance(values, dict):
        raise UnsafeProgram("it has values without keys")
    return {key: _checked(value) for key, value in values.items()}


def _check_name(name: Any) -> Any:
    """Check a name that becomes a Python name. None and the empty string mean that there is none."""
    if name is None or name == "":
        return name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UnsafeProgram(f"the name {_shown(name)} is no identifier")
    if (
        (match := re.fullmatch(r"[a-z]+(\d+)", name))
        and len(match[1]) > 6
        and int(match[1][:19]) > MOST_SYMBOLS
    ):
        raise UnsafeProgram(f"the name {_shown(name)} has too great a number")
    return name


def _check_names(names: Any) -> Any:
    for name in names or ():
        _check_name(name)
    return names


def _check_path(path: Any) -> Any:
    """Check the path of a module or a parameter. PyTorch writes it between quotes."""
    if path is not None and (not isinstance(path, str) or not _PATH.fullmatch(path)):
        raise UnsafeProgram(f"the path {_shown(path)} has quotes, backslashes or control characters")
    return path


def _check_operator(name: Any) -> Any:
    """Check that an operator is one of PyTorch's that computes tensors or sizes."""
    if isinstance(name, str):
        if name in _ON_SIZES:
            return name
        if (match := _OPERATOR.fullmatch(name)) and match[2] not in _REFUSED:
            return name
        if _OWN.fullmatch(name):
            return name
        if (match := _HIGHER_ORDER.fullmatch(name)) and match[1] in _WITH_GRAPHS:
            return name
    raise UnsafeProgram(f"it calls {_shown(name)}, which is no operator on tensors of PyTorch's")


def _check_size(text: Any) -> Any:
    """Check that the expression of a size is arithmetic on integers and symbols."""
    if not isinstance(text, str) or len(text) > LONGEST_SIZE:
        raise UnsafeProgram(f"the size {_shown(text)} is no expression of up to {LONGEST_SIZE} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise UnsafeProgram(f"the size {_shown(text)} is no expression") from None
    power = 1
    for node in ast.walk(tree):
        if not isinstance(node, _ARITHMETIC) or not _is_plain(node):
            raise UnsafeProgram(f"the size {_shown(text)} is no arithmetic")
        for exponent in _exponents(node):
            power *= max(1, abs(exponent))
        if power > GREATEST_POWER:
            raise UnsafeProgram(f"the size {_shown(text)} has too great a power")
    return text


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
    if isinstance(node, ast.keyword):
        return node.arg is not None and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Name):
        return bool(_NAME.fullmatch(node.id)) and not node.id.startswith("_")
    if isinstance(node, ast.Constant):
        is_number = node.value is None or isinstance(node.value, (bool, int, float))
        return is_number or (isinstance(node.value, str) and bool(_ATOM.fullmatch(node.value)))
    return True


def _exponents(node: ast.AST) -> Iterator[int]:
    """Yield the exponent of a power or shift. One that is no small number counts as too great."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift, ast.RShift)):
        yield _number(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _POWERS:
        yield _number(node.args[1]) if len(node.args) == 2 else GREATEST_POWER + 1


def _number(node: ast.AST) -> int:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _number(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        if node.func.id in ("Integer", "Float"):
            return _number(node.args[0])
        if node.func.id == "Rational" and len(node.args) == 2:
            return max(_number(each) for each in node.args)
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,3}(\.\d{1,6})?", value, re.ASCII):
        value = float(value)
    if isinstance(value, (int, float)) and abs(value) <= GREATEST_POWER:
        return int(abs(value)) + (abs(value) != int(abs(value)))
    return GREATEST_POWER + 1


def _check_inputs(text: Any) -> Any:
    """Check the types that hold a function's inputs: they are known, and keywords are identifiers."""
    _check_types(text)
    try:
        _, spec = json.loads(text)
        keywords = spec["children_spec"][1]
        if keywords["type"] == "builtins.dict":
            _check_names(json.loads(keywords["context"]))
    except (TypeError, LookupError, ValueError) as error:
        if isinstance(error, UnsafeProgram):
            raise
    return text


def _check_types(text: Any) -> Any:
    """Check that the types that hold a function's inputs or outputs make PyTorch import nothing."""
    if not isinstance(text, str) or "__enum__" in text or "defaultdict" in text or "\\u" in text:
        raise UnsafeProgram(
            "it takes or returns objects of a class; export a module that takes and returns tensors"
        )
    return text


def _only_modules(metadata: Any) -> Any:
    """Return a node's metadata without everything but the names of its modules."""
    if not isinstance(metadata, Mapping):
        return {}
    return {
        key: value for key, value in metadata.items() if key == "nn_module_stack" and isinstance(value, str)
    }


def _nothing(value: Any) -> Any:
    """Refuse an object of a class."""
    if value:
        raise UnsafeProgram("it holds a Python object; export a module whose constants are tensors")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


_CHECKS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        **dict.fromkeys(("name", "as_name", "user_input_name"), _check_name),
        **dict.fromkeys(("fqn", "parameter_name", "buffer_name", "tensor_constant_name"), _check_path),
        **dict.fromkeys(("target", "as_operator"), _check_operator),
        **dict.fromkeys(_BY_NAME, _checked_by_name),
        **dict.fromkeys(_BY_KEY, _checked_by_key),
        **dict.fromkeys(("as_custom_obj", "custom_obj", "custom_obj_values"), _nothing),
        "forward_arg_names": _check_names,
        "range_constraints": _checked_by_symbol,
        "expr_str": _check_size,
        "in_spec": _check_inputs,
        "out_spec": _check_types,
        "metadata": _only_modules,
    }
)
"""The check of each part of a program, by its key. Parts of other keys are checked inside."""
