# SPDX-License-Identifier: Apache-2.0
"""Concatenations run in the order of axes of the operators around them."""

from __future__ import annotations

from tvm.script import ir as I
from tvm.script import relax as RS
from tvm.script import tirx as T

from tests.relax.layout.permutation_runs import check, stays


def test_concatenations_with_channels_last() -> None:
    """As in a dense block: features are joined channels-first, and every layer reads them with channels last."""

    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((2, 3, 5, 4), "float32"), y: RS.Tensor((2, 3, 5, 6), "float32")):
            with RS.dataflow():
                first = RS.permute_dims(RS.nn.softmax(x), [0, 3, 1, 2])
                second = RS.permute_dims(RS.nn.softmax(y), [0, 3, 1, 2])
                both = RS.nn.relu(RS.concat((first, second), axis=1))
                read = RS.nn.softmax(RS.permute_dims(both, [0, 2, 3, 1]))
                all_three = RS.concat((first, both, second), axis=-3)
                last = RS.nn.softmax(RS.permute_dims(all_three, [0, 2, 3, 1]))
                result = RS.concat((read, last), axis=3)
                RS.output(result)
            return result

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor((2, 3, 5, 4), "float32"), y: RS.Tensor((2, 3, 5, 6), "float32")):
            with RS.dataflow():
                first = RS.nn.softmax(x)
                second = RS.nn.softmax(y)
                joined = RS.concat((first, second), axis=3)
                both = RS.nn.relu(joined)
                read = RS.nn.softmax(both)
                all_three = RS.concat((first, both, second), axis=3)
                last = RS.nn.softmax(all_three)
                result = RS.concat((read, last), axis=3)
                RS.output(result)
            return result

    check(Before, After)


def test_a_concatenation_of_symbolic_extents_stays() -> None:
    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((2, "n", 4), "float32"), y: RS.Tensor((2, "n", 4), "float32")):
            n = T.int64()  # noqa: F841
            with RS.dataflow():
                first = RS.permute_dims(x, [0, 2, 1])
                second = RS.permute_dims(y, [0, 2, 1])
                both = RS.concat((first, second), axis=1)
                result = RS.nn.softmax(RS.permute_dims(both, [0, 2, 1]))
                RS.output(result)
            return result

    stays(Before)
