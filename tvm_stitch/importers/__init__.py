# SPDX-License-Identifier: Apache-2.0
"""What TVM's importers of PyTorch programs and ONNX models lack or get wrong."""
