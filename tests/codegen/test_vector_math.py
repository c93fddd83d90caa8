# SPDX-License-Identifier: Apache-2.0
"""Errors, special cases and vectorization of the float functions on llvm CPUs."""

import math
import re

import numpy as np
import pytest
import tvm

from stitch_testing.vector_loops import LANES, Library, compute, kernel
from tvm_stitch import compat
from tvm_stitch.codegen.vector_math import MATH_ERROR, lower_math
from tvm_stitch.codegen.vector_math.errors import BOUNDS
from tvm_stitch.codegen.vector_math.scope import Scope
from tvm_stitch.compat import tir

# With fused multiply-add, and without it (each rounds differently). Every x86-64 machine of today runs both.
CPUS = ["x86-64-v3", "x86-64-v2"]
SPECIAL = np.array(
    [
        0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1,
        -1,
        2,
        -2,
        3,
        -3,
        0.5,
        -0.5,
        1e-45,
        -1e-45,
        1e-39,
        -1e-39,
        1.1754944e-38,
    ]
    + [
        3.4028235e38,
        -3.4028235e38,
        1e10,
        16777216,
        16777217.0,
        8388607.5,
        0.99999994,
        1.0000001,
        88.72283,
        88.72284,
    ]
    + [
        -87.33654,
        -87.33655,
        -103.97207,
        -103.97208,
        -103.97209,
        127.99999,
        128,
        -149,
        -149.5,
        -150,
        -150.5,
        1e-10,
    ],
    dtype=np.float32,
)
_X86 = "x86" in str(tvm.target.Target("llvm").attrs["mtriple"])
pytestmark = pytest.mark.skipif(not _X86, reason="the targets named here are x86-64's")


def bit_patterns(count, seed):
    """Floats of every magnitude: random bits, NaN and infinity among them."""
    bits = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    return bits.view(np.float32)


def grid(*ranges, count=200_000):
    dense = [np.linspace(low, high, count) for low, high in ranges]
    return np.concatenate([*(part.astype(np.float32) for part in dense), bit_patterns(count, 1), SPECIAL])


def errors_in_ulp(got, want):
    """|got - want| in units of the exact result's last place, 0 where that result is not a finite float32."""
    finite = np.abs(want) <= 3.4028235677973366e38
    with np.errstate(all="ignore"):
        last = np.spacing(np.maximum(np.abs(want).astype(np.float32), np.float32(2.0**-126))).astype(
            np.float64
        )
        return np.where(finite, np.abs(got.astype(np.float64) - want) / last, 0.0), finite


def check(got, want, ulp, *xs):
    """Check finite results within ``ulp``, and NaN, infinities and the signs of zeros exactly."""
    error, finite = errors_in_ulp(got, want)
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= ulp, (
        f"{error[worst]} ulp at {[x[worst] for x in xs]}: {got[worst]}, not {want[worst]}"
    )
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
    same = np.where(np.isnan(rounded), np.isnan(got), (got == rounded) | finite)
    same &= ~(want == 0) | (np.signbit(got) == np.signbit(want))
    assert same.all(), [(*(x[~same][0] for x in xs), got[~same][0], want[~same][0])]


def sigmoid(x):
    return np.where(x < 0, np.exp(x), 1.0) / (1.0 + np.exp(-np.abs(x)))


UNARY = {
    "exp": (np.exp, grid((-105, 90), (-1, 1))),
    "exp2": (np.exp2, grid((-151, 129), (-1, 1))),
    "exp10": (lambda x: np.power(10.0, x), grid((-46, 39), (-1, 1))),
    "sigmoid": (sigmoid, grid((-105, 105), (-6, 6))),
    "tanh": (np.tanh, grid((-10, 10), (-0.5, 0.5))),
    "sinh": (np.sinh, grid((-90, 90), (-1.5, 1.5))),
    "cosh": (np.cosh, grid((-90, 90), (-1.5, 1.5))),
    "log": (np.log, grid((0, 4), (0.7, 1.42), (0, 1e4))),
    "log2": (np.log2, grid((0, 4), (0.7, 1.42), (0, 1e4))),
    "log10": (np.log10, grid((0, 4), (0.7, 1.42), (0, 1e4))),
    "log1p": (np.log1p, grid((-1.1, 4), (-0.3, 0.42), (0, 1e4))),
    "erf": (np.vectorize(math.erf), grid((-4.5, 4.5), (-1, 1), count=100_000)),
    "sin": (np.sin, grid((-10, 10), (-1e5, 1e5))),
    "cos": (np.cos, grid((-10, 10), (-1e5, 1e5))),
    "tan": (np.tan, grid((-10, 10), (-1e5, 1e5))),
    "asin": (np.arcsin, grid((-1.01, 1.01))),
    "acos": (np.arccos, grid((-1.01, 1.01))),
    "atan": (np.arctan, grid((-10, 10), (-1, 1))),
    "asinh": (np.arcsinh, grid((-10, 10))),
    "acosh": (np.arccosh, grid((0.9, 10))),
    "atanh": (np.arctanh, grid((-1.01, 1.01))),
    "rsqrt": (lambda x: 1 / np.sqrt(x), grid((0, 10))),
    "nearbyint": (np.rint, grid((-10, 10), (-1e7, 1e7))),
}
BINARY = {"pow": np.power, "atan2": np.arctan2, "hypot": np.hypot}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", UNARY)
def test_unary_error(name, cpu):
    reference, x = UNARY[name]
    with np.errstate(all="ignore"):
        want = np.asarray(reference(x.astype(np.float64)), dtype=np.float64)
    got = compute(getattr(tir, name), x, cpu=cpu)
    check(got, want, BOUNDS[name].ulp if name in BOUNDS else 0.0, x)
    if name in BOUNDS and BOUNDS[name].relative is not None:
        normal = np.abs(want) >= 2.0**-126
        assert np.abs(got[normal] / want[normal] - 1).max() <= BOUNDS[name].relative


def pairs(name):
    rng = np.random.default_rng(2)
    special = np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))
    patterns = bit_patterns(200_000, 3), bit_patterns(200_000, 4)
    near = rng.uniform(-3, 3, 200_000), rng.uniform(-3, 3, 200_000)
    columns = [special, patterns, near]
    if name == "pow":
        base = np.exp(rng.uniform(-87, 87, 200_000))
        # Results from denormal to overflowing, then negative bases with integer exponents.
        columns.append((base, rng.uniform(-104, 90, 200_000) / np.log(base)))
        columns.append((rng.uniform(-3, 3, 100_000), rng.integers(-60, 60, 100_000)))
    return [np.concatenate([p.astype(np.float32) for p in parts]) for parts in zip(*columns, strict=True)]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", BINARY)
def test_binary_error(name, cpu):
    x, y = pairs(name)
    with np.errstate(all="ignore"):
        want = BINARY[name](x.astype(np.float64), y.astype(np.float64))
    check(compute(lambda a, b: getattr(tir, name)(a, b), x, y, cpu=cpu), want, BOUNDS[name].ulp, x, y)


def test_pow_special_cases_are_those_of_c():
    """numpy's float64 pow, the reference above, is the C library's. This is the standard's own list."""
    inf, nan = np.inf, np.nan
    cases = [
        (-0.0, -3, -inf),
        (0.0, -2, inf),
        (-1, inf, 1),
        (1, nan, 1),
        (nan, 0, 1),
        (-2, 0.5, nan),
        (0.5, -inf, inf),
    ]
    cases += [
        (2, -inf, 0),
        (-inf, -3, -0.0),
        (-inf, 3, -inf),
        (inf, -1, 0),
        (-inf, 0.5, inf),
        (-0.0, 3, -0.0),
    ]
    x, y, want = (np.array(column, dtype=np.float32) for column in zip(*cases, strict=True))
    got = compute(lambda a, b: tir.pow(a, b), x, y)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("exponent", [-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 5, 1.5, 7, -4])
def test_constant_exponents(exponent):
    x = grid((-10, 10))
    with np.errstate(all="ignore"):
        # An array of exponents: numpy replaces some scalar ones by square roots, which differ from C's pow.
        want = np.power(x.astype(np.float64), np.full(len(x), float(exponent)))
    got = compute(lambda a: tir.pow(a, tir.const(float(exponent), "float32")), x)
    check(got, want, 3.5, x)  # ulp


def test_bounded_functions_stay_within_one():
    x = grid((-10, 10), (-4, 4))
    for name in ("tanh", "erf"):
        got = compute(getattr(tir, name), x)
        assert np.nanmax(np.abs(got)) == 1.0
        assert np.isnan(got[np.isnan(x)]).all()
    assert set(MATH_ERROR) >= {*UNARY, *BINARY}


def float_calls(assembly):
    """Functions called (or jumped to) in assembly, apart from TVM's own."""
    names = re.findall(r"\b(?:call|callq|jmp)\s+\*?([A-Za-z_][\w.]*)", assembly)
    return {name for name in names if not name.startswith(("TVM", "__tvm", "main"))}


def assert_vector_code(module, cpu):
    """Vector stores in the IR before LLVM's own vectorizer could have made them, and no call per element."""
    ir = Library(module, cpu, opt_level=0).source("ll")
    assert re.search(rf"store <{LANES} x (float|i32)>", ir), "the vectorized loop became scalar"
    assert float_calls(Library(module, cpu).source("s")) == set()


@pytest.mark.parametrize("cpu", ["x86-64", *CPUS, "x86-64-v4"])
def test_everything_vectorizes(cpu):
    """On SSE2 (where LLVM's rounding intrinsics are libm calls), SSE4, AVX2 and AVX-512."""
    for name in [*UNARY, *BINARY]:
        if name == "nearbyint" and cpu == "x86-64":
            continue
        args = 2 if name in BINARY else 1
        assert_vector_code(kernel(getattr(tir, name), args, 1024), cpu)


OPERATORS = {
    "isnan": lambda x: tir.Select(tir.isnan(x), tir.const(0, "float32"), x),
    "copysign": lambda x: tir.copysign(tir.const(2, "float32"), x),
    "if_then_else": lambda x: tir.if_then_else(
        x > tir.const(0, "float32"), tir.exp(tir.const(2, "float32")), 0.0
    ),
    "gelu": lambda x: x * (tir.erf(x * tir.const(0.70710678, "float32")) * 0.5 + 0.5),
    "softplus": lambda x: tir.Select(x > 20.0, x, tir.log(tir.exp(x) + 1.0)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_vectorize(name):
    assert_vector_code(kernel(OPERATORS[name], 1, 1024), "x86-64-v3")
    stock = kernel(OPERATORS[name], 1, 1024, lower=lambda value, bind=None: value)
    with pytest.raises(AssertionError):
        assert_vector_code(stock, "x86-64-v3")


def test_lets_vectorize_and_compute_the_same():
    x = grid((-10, 10), count=1000)
    for name in ("exp", "log1p", "sin", "tanh"):
        module = kernel(getattr(tir, name), 1, 1024, lets=True)
        assert "T.Let(" in module.script()
        assert_vector_code(module, "x86-64-v3")
        function = getattr(tir, name)
        np.testing.assert_array_equal(compute(function, x, lets=True), compute(function, x))


def test_a_long_chain_needs_bind():
    """Without bind it is refused: Lets this deep take TVM minutes. With it time and size stay linear."""

    def chain(x):
        for _ in range(40):
            x = tir.tanh(x) * tir.const(1.5, "float32") + tir.sigmoid(x)
        return x

    x = np.linspace(-3, 3, 64, dtype=np.float32)
    with pytest.raises(ValueError, match="bind"):
        kernel(chain_of_two, 1, 64, lets=True)
    want = x.astype(np.float64)
    for _ in range(40):
        want = np.tanh(want) * 1.5 + sigmoid(want)
    np.testing.assert_allclose(compute(chain, x), want, rtol=2e-6)


def chain_of_two(x):
    for _ in range(6):
        x = tir.tanh(tir.sin(x))
    return x


def test_equal_calls_are_computed_once():
    x, bound = tir.Var("x", "float32"), []

    def bind(value):
        bound.append(value)
        return tir.Var(f"v{len(bound)}", compat.dtype_of(value))

    lower_math(tir.tanh(x), bind)
    once = len(bound)
    bound.clear()
    lower_math(tir.tanh(x) * tir.tanh(x) + tir.tanh(x), bind)
    assert len(bound) == once


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_compute_in_float32(dtype):
    x = tir.Var("x", dtype)
    lowered = lower_math(tir.exp(x), lambda value: tir.Var("v", compat.dtype_of(value)))
    assert compat.dtype_of(lowered) == dtype
    if dtype == "float16":
        values = np.linspace(-8, 8, 4096).astype(np.float16)
        got = compute(tir.exp, values, dtype=dtype)
        np.testing.assert_array_equal(got, np.exp(values.astype(np.float32)).astype(np.float16))


def test_float64_keeps_libm_precision():
    small = 10.0 ** -np.arange(1, 309, 4)
    x = np.concatenate([np.linspace(-20, 20, 1001), [np.inf, -np.inf, np.nan, 0.0], small, -small])
    functions = {f.__name__: f for f in (np.exp, np.sinh, np.cosh, np.tanh, np.log1p)}
    functions |= {"nearbyint": np.rint, "exp10": lambda v: np.power(10.0, v), "atanh": np.arctanh}
    for name, reference in functions.items():
        with np.errstate(all="ignore"):
            want = reference(x)
        np.testing.assert_allclose(compute(getattr(tir, name), x, dtype="float64"), want, rtol=1e-14)
    nan = compute(lambda v: tir.Select(tir.isnan(v), tir.const(1.0, "float64"), v * 0.0), x, dtype="float64")
    np.testing.assert_array_equal(nan == 1.0, np.isnan(x))


def test_fmod_compiles_and_is_exact():
    x, y = bit_patterns(4096, 5), bit_patterns(4096, 6)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compute(tir.fmod, x, y), np.fmod(x, y))


def test_guarded_loads_stay_guarded():
    """A pad: the load outside the buffer must not run."""
    data = tir.decl_buffer((8,), "float32", "data")
    i = tir.Var("i", "int32")
    pad = tir.if_then_else(i < 8, tir.exp(tir.BufferLoad(data, [i])), tir.const(0, "float32"))
    bound = []
    kept = lower_math(pad, bind=lambda value: bound.append(value))
    assert kept.op.name.endswith("if_then_else") and not bound
    assert "T.exp" not in kept.script()
    chosen = tir.if_then_else(i < 8, tir.exp(tir.Var("x", "float32")), tir.const(0, "float32"))
    assert isinstance(lower_math(chosen, lambda value: tir.Var("v", compat.dtype_of(value))), tir.Select)
    trap = tir.if_then_else(i > 0, tir.floordiv(8, i), 0)
    assert lower_math(trap).op.name.endswith("if_then_else")


def test_what_needs_no_change_is_the_same_object():
    x, i = tir.Var("x", "float32"), tir.Var("i", "int32")
    for expr in (x * x + x, tir.sqrt(tir.abs(x)), tir.floor(x), i * 4 + 1, tir.Cast("int32", x)):
        assert lower_math(expr).same_as(expr)


def test_what_computes_with_bfloat16_is_in_no_let() -> None:
    """TVM's legalization of bfloat16 leaves the values of Lets out: bits would be read as numbers."""
    buffer = tir.decl_buffer((4,), "bfloat16")
    read = tir.Cast("float32", tir.BufferLoad(buffer, [tir.const(1, "int64")]))
    scope = Scope()
    assert scope.let(read).same_as(read)
    with pytest.raises(ValueError, match="bfloat16"):
        scope.let(read * tir.const(2.0, "float32"))
