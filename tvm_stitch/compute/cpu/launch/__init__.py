# SPDX-License-Identifier: Apache-2.0
"""The launcher of parallel regions: how compiled CPU code calls it (:mod:`.launcher`), and its C++ code."""
