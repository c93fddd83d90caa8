# SPDX-License-Identifier: Apache-2.0
"""Two reports of one model side by side: of two versions, of two configurations, or stock and stitched."""
