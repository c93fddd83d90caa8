// SPDX-License-Identifier: Apache-2.0
// The fixed-width integers that a kernel takes from cuda::std.
#pragma once
namespace cuda {
namespace std {
using ::int8_t;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::uint8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
}  // namespace std
}  // namespace cuda
