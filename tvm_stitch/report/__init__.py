# SPDX-License-Identifier: Apache-2.0
"""Reports on stitched models as plain data, and their views: text, an HTML page, a trace, answers about pairs."""
