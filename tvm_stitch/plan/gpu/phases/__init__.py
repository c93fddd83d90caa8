# SPDX-License-Identifier: Apache-2.0
"""The division of a stitch op into phases of stages."""
