# SPDX-License-Identifier: Apache-2.0
"""Build the data of a report from a module before and after stitching."""
