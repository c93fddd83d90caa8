# SPDX-License-Identifier: Apache-2.0
"""From a module before and after stitching to the data of a report."""
