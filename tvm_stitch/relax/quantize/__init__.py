# SPDX-License-Identifier: Apache-2.0
"""Quantized operands: integer products, dequantized constants, views."""
