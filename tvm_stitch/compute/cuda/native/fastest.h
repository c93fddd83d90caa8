// SPDX-License-Identifier: Apache-2.0
// Which of some algorithms is the fastest, where calls are short and other processes may use the device as well.
#ifndef TVM_STITCH_COMPUTE_CUDA_FASTEST_H_
#define TVM_STITCH_COMPUTE_CUDA_FASTEST_H_

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace tvm_stitch {
namespace {

constexpr float kFailed = std::numeric_limits<float>::infinity();

// Times of calls are compared in rounds, in which the algorithms take turns: what disturbs one disturbs its neighbours.
constexpr int kRounds = 4;
constexpr float kHopeless = 1.5f;    // of the least time in the round before: an algorithm that is out
constexpr float kPays = 0.97f;       // of the first one's time: what another one has to reach
constexpr float kRoundSpan = 0.1f;   // milliseconds of an algorithm in a round, about
constexpr int kMostCalls = 10;       // of it

// The index of the fastest of ``count`` algorithms; the first one is the library's own choice, and stays unless another
// one is clearly faster. ``measure(index, calls)`` gives the milliseconds of one call, the mean of some, or kFailed.
template <typename Measure>
size_t Fastest(size_t count, Measure measure) {
  if (count == 1) return 0;
  std::vector<float> least(count, kFailed);
  for (size_t i = 0; i < count; ++i) {
    // The first call may load code.
    if (measure(i, 1) != kFailed) least[i] = measure(i, 1);
  }
  for (int round = 0; round < kRounds; ++round) {
    float best = *std::min_element(least.begin(), least.end());
    if (best == kFailed) return 0;
    int calls = std::clamp(static_cast<int>(kRoundSpan / std::max(best, 1e-3f)), 1, kMostCalls);
    for (size_t i = 0; i < count; ++i) {
      if (least[i] > kHopeless * best) continue;
      float spent = measure(i, calls);
      // What was measured of one call has the time in it that it takes to be launched.
      least[i] = round == 0 ? spent : std::min(least[i], spent);
    }
  }
  size_t found = std::min_element(least.begin(), least.end()) - least.begin();
  return least[found] < kPays * least[0] ? found : 0;
}

}  // namespace
}  // namespace tvm_stitch

#endif  // TVM_STITCH_COMPUTE_CUDA_FASTEST_H_
