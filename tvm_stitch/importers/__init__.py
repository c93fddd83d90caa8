# SPDX-License-Identifier: Apache-2.0
"""Additions and repairs for TVM's importers of PyTorch programs and ONNX models."""
