# SPDX-License-Identifier: Apache-2.0
MATH_ERROR: dict[str, str] = {}
