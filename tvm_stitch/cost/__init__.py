# SPDX-License-Identifier: Apache-2.0
"""Cost models, from coarse to exact: what a decision costs before it is made."""
