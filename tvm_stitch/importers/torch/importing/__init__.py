# SPDX-License-Identifier: Apache-2.0
"""The table of operators, refusals, checks of results, and changed buffers."""
