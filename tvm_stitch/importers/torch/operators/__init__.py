# SPDX-License-Identifier: Apache-2.0
"""Converters of PyTorch's core operators by family, in PyTorch's types and for empty tensors and tensors of no axis."""
