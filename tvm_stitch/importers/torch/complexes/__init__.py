# SPDX-License-Identifier: Apache-2.0
"""Complex tensors of PyTorch programs: their parts, arithmetic, Fourier transforms, inputs and results.

The importer holds a complex tensor as a pair of real Relax expressions, its real and imaginary parts. A real tensor
with a last axis of two elements would hold it too. But then axes that count from the end would differ from PyTorch's.
Parts would alternate in memory, so that no vector loads one of them. With a pair, operators that move data use the
converters of real tensors twice. Parts that nobody reads are dropped.
"""
