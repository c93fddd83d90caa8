# SPDX-License-Identifier: Apache-2.0
"""How a stitch op runs: its domain, its passes, which values are kept where, and the thread mapping."""
