# SPDX-License-Identifier: Apache-2.0
"""The commands of ``tvm-stitch``, one file each."""
