# SPDX-License-Identifier: Apache-2.0
"""Checks and repairs around TVM's ONNX importer."""
