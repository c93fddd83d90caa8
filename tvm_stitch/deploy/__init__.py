# SPDX-License-Identifier: Apache-2.0
"""Compiled models as files: export, embedded C++ functions, linking, and the requirements of the running machine."""
