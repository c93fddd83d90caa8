# SPDX-License-Identifier: Apache-2.0
"""Run compiled models: inputs, calls, times and launches, and comparison with ONNX Runtime."""
