# SPDX-License-Identifier: Apache-2.0
"""Read ONNX and PyTorch model files."""
