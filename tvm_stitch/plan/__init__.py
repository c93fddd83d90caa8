# SPDX-License-Identifier: Apache-2.0
"""The execution of a stitch op: its domain, its passes, the storage of its values, and the thread mapping."""
