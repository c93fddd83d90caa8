# SPDX-License-Identifier: Apache-2.0
"""Short Fourier transforms of values in registers: the butterflies of the stages of a fast transform.

A composite number of values is transformed by its factors (Cooley and Tukey). An odd prime number of them is
transformed by sums and differences of the values at j and at -j. Products with roots of one of order 8 are written as
additions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Number = tuple[Any, Any]
"""Real and imaginary part: expressions."""
Bind = Callable[[Any], Any]
"""Names an expression that is read more than once, and returns the name."""


def butterfly(
    values: Sequence[Number], sign: int, bind: Bind, constant: Callable[[float], Any]
) -> list[Number]:
    """Return ``sum_j x[j] * exp(sign * 2 pi i * j * k / r)`` for each k of r values.

    Args:
        values: the r values.
        sign: -1, or 1 for the inverse.
        bind: names an expression.
        constant: makes a constant of the values' type.
    """
    return _Butterfly(sign, bind, constant).of(list(values))


class _Butterfly:
    def __init__(self, sign: int, bind: Bind, constant: Callable[[float], Any]):
        self.sign, self.bind, self.constant = sign, bind, constant

    def of(self, x: list[Number]) -> list[Number]:
        count = len(x)
        if count == 1:
            return x
        if count == 2:
            return [self.add(x[0], x[1]), self.subtract(x[0], x[1])]
        first = next((p for p in (4, 2, 3, 5, 7, 11, 13) if count % p == 0 and count > p), count)
        if first == count:
            return self.of_four(x) if count == 4 else self.of_prime(x)
        second = count // first
        columns = [self.of(x[j::second]) for j in range(second)]
        result: list[Any] = [None] * count
        for k in range(first):
            row = [self.rotated(columns[j][k], j * k, count) for j in range(second)]
            result[k::first] = self.of(row)
        return result

    def of_four(self, x: list[Number]) -> list[Number]:
        even, odd = self.of([x[0], x[2]]), self.of([x[1], x[3]])
        (a, b), (c, d) = even[1], odd[1]
        upper = self.bind(a - d), self.bind(b + c)
        lower = self.bind(a + d), self.bind(b - c)
        if self.sign < 0:
            upper, lower = lower, upper
        return [self.add(even[0], odd[0]), upper, self.subtract(even[0], odd[0]), lower]

    def of_prime(self, x: list[Number]) -> list[Number]:
        count, half = len(x), len(x) // 2
        sums = [self.add(x[j], x[count - j]) for j in range(1, half + 1)]
        differences = [self.subtract(x[j], x[count - j]) for j in range(1, half + 1)]
        total = x[0]
        for each in sums:
            total = total[0] + each[0], total[1] + each[1]
        result: list[Any] = [(self.bind(total[0]), self.bind(total[1]))] + [None] * (count - 1)
        for k in range(1, half + 1):
            a, b = x[0]
            c: Any = None
            d: Any = None
            for j, (plus, minus) in enumerate(zip(sums, differences), 1):
                angle = 2 * math.pi * (j * k % count) / count
                cos, sin = self.constant(math.cos(angle)), self.constant(self.sign * math.sin(angle))
                a, b = a + plus[0] * cos, b + plus[1] * cos
                c = minus[0] * sin if c is None else c + minus[0] * sin
                d = minus[1] * sin if d is None else d + minus[1] * sin
            a, b, c, d = map(self.bind, (a, b, c, d))
            result[k] = self.bind(a - d), self.bind(b + c)
            result[count - k] = self.bind(a + d), self.bind(b - c)
        return result

    def add(self, a: Number, b: Number) -> Number:
        return self.bind(a[0] + b[0]), self.bind(a[1] + b[1])

    def subtract(self, a: Number, b: Number) -> Number:
        return self.bind(a[0] - b[0]), self.bind(a[1] - b[1])

    def rotated(self, x: Number, exponent: int, order: int) -> Number:
        """Return a number times a root of one."""
        eighths, rest = divmod(8 * (self.sign * exponent % order), order)
        a, b = x
        if rest:
            angle = 2 * math.pi * (self.sign * exponent % order) / order
            cos, sin = self.constant(math.cos(angle)), self.constant(math.sin(angle))
            return self.bind(a * cos - b * sin), self.bind(a * sin + b * cos)
        if eighths % 2:
            root = self.constant(math.sqrt(0.5))
            a, b, eighths = self.bind((a - b) * root), self.bind((a + b) * root), eighths - 1
        minus = self.constant(-1.0)
        if eighths == 2:
            return self.bind(b * minus), a
        if eighths == 4:
            return self.bind(a * minus), self.bind(b * minus)
        if eighths == 6:
            return b, self.bind(a * minus)
        return a, b
