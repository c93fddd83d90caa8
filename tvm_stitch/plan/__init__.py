# SPDX-License-Identifier: Apache-2.0
"""The execution of a stitch op: its domain, its passes, which values are kept where, and the thread mapping."""
