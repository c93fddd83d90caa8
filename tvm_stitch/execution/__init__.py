# SPDX-License-Identifier: Apache-2.0
"""Compiled models at work: their inputs, calls, times and launches, and what ONNX Runtime makes of the same model."""
