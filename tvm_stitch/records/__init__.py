# SPDX-License-Identifier: Apache-2.0
"""The decisions of stitching as plain data, for reports."""
