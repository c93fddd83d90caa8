# SPDX-License-Identifier: Apache-2.0
"""Names of a model as identifiers of generated code.

A model's author chooses the names of inputs, dimensions and functions, and they reach CUDA C and C. Such a name may
be no identifier, or a keyword. It may be a name of CUDA or of a header, or even a piece of code. Only
:func:`identifier` makes identifiers of names. Two names never get one identifier.
"""

from __future__ import annotations

import hashlib
import re

LONGEST = 200
"""Most characters of an identifier. Compilers of CUDA C take more, but not every one."""

_PREFIX = "named_"
"""Begins all identifiers that are not the name itself."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ESCAPED = re.compile(r"[^A-PR-Za-z0-9_]", re.ASCII)
_OF_COMPILERS = re.compile(
    r"__.*|_[A-Z].*|cuda\w*|cu[A-Z]\w*|nv\w+|tvm_?ffi\w*|tvm_[a-z]\w*|TVM\w*", re.ASCII
)
"""Names that compilers, CUDA and TVM's runtime keep for themselves."""
_VECTORS = re.compile(
    r"(u?(char|short|int|long|longlong)|float|double|half|bool|bfloat16?)\d+(_t)?", re.ASCII
)
_KEYWORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class "
    "co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype "
    "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline "
    "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast "
    "struct switch template this thread_local throw true try typedef typeid typename typeof union unsigned using "
    "virtual void volatile wchar_t while xor xor_eq".split()
)
_TYPES = frozenset(
    "bfloat16 bfloat162 clock_t dim3 half half2 int8_t int16_t int32_t int64_t intptr_t nullptr_t ptrdiff_t "
    "size_t ssize_t std time_t uchar uint uint8_t uint16_t uint32_t uint64_t uintptr_t ulong ulonglong ushort".split()
)
_BUILT_IN = frozenset(
    "blockDim blockIdx gridDim threadIdx warpSize errno stdin stdout stderr linux unix i386 assert offsetof "
    "va_arg va_end va_list va_start abort atomicAdd atomicAnd atomicCAS atomicDec atomicExch atomicInc atomicMax "
    "atomicMin atomicOr atomicSub atomicXor calloc clock clock64 exit free malloc memcpy memset printf puts "
    "realloc surf1Dread tex1D trap wmma cooperative_groups extern_C".split()
)
_MACROS = frozenset(
    "BUFSIZ CHAR_BIT DBL_EPSILON DBL_MAX DBL_MIN EDOM EOF ERANGE EXIT_FAILURE EXIT_SUCCESS FLT_EPSILON FLT_MAX "
    "FLT_MIN HUGE_VAL HUGE_VALF I INFINITY INT_MAX INT_MIN LONG_MAX LONG_MIN M_E M_PI NAN NDEBUG NULL RAND_MAX "
    "SIZE_MAX UINT_MAX CUDART_INF CUDART_INF_F CUDART_NAN CUDART_NAN_F".split()
)
_MATH = frozenset(
    "abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc erfcinv erfcx erfinv "
    "exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb isfinite isinf isnan j0 j1 jn "
    "ldexp lgamma llabs llrint llround log log10 log1p log2 logb lrint lround max min modf nan nearbyint "
    "nextafter norm norm3d norm4d normcdf normcdfinv pow powi rcbrt remainder remquo rhypot rint rnorm round "
    "rsqrt saturate scalbln scalbn signbit sin sincos sincospi sinh sinpi sqrt tan tanh tanpi tgamma trunc y0 y1 "
    "yn".split()
)
_TAKEN = _KEYWORDS | _TYPES | _BUILT_IN | _MACROS | _MATH | frozenset(f"{name}f" for name in _MATH)


def identifier(name: str) -> str:
    """Return the identifier of a name in generated code: the name itself if it may be one there.

    Other names get a prefix, and so do names that begin with it. Each of their characters that is no letter, digit or
    underscore becomes its number. A name that is too long gets a hash at its end. The function is injective.
    """
    if is_identifier(name) and not name.startswith(_PREFIX):
        return name
    escaped = _PREFIX + _ESCAPED.sub(lambda match: f"Q{ord(match[0]):x}Q", name)
    if len(escaped) <= LONGEST:
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]
    return f"{escaped[: LONGEST // 2]}Qhash{digest}Q"


def is_identifier(name: str) -> bool:
    """Return whether a name may be an identifier in C, C++ and CUDA C, and hides nothing that kernels use."""
    return bool(
        _IDENTIFIER.fullmatch(name)
        and len(name) <= LONGEST
        and name not in _TAKEN
        and not _VECTORS.fullmatch(name)
        and not _OF_COMPILERS.fullmatch(name)
    )
