// SPDX-License-Identifier: Apache-2.0
// Convolution of float32, exact, as a matrix product whose right side is gathered from the images while it is copied.
//
// Rows are channels of the result, columns its places, of all images one after the other, and the depth runs over the
// window and the channels that are read. Channels are first in memory, places innermost.
#ifndef TVM_STITCH_CONVOLUTION_FLOAT
#define TVM_STITCH_CONVOLUTION_FLOAT

namespace tvm_stitch {

// What a kernel is compiled for.
//   kRows, kPlaces: of a block's tile of results. A thread has 8 x 8 of them, in four squares.
//   kSlices: groups of threads that add up different products of a tile.
//   kDepth: products that a slice adds up in a step.
//   kGathered: a step runs through the window of one channel after the other, which suits few channels; else through the
//     channels at one place of the window.
//   kKeepsTile: the tile of results stays in shared memory, <kRows, kPlaces>, for the block to go on with.
//   kExchanged: images and channels of the data are so in memory, as the gradient of a weight reads them, whose window is
//     as large as an image. Neighbouring threads then copy what neighbouring elements of the window meet, not
//     neighbouring places. Of one group, and kGathered.
//   kGroups: of channels. The others: extents of the window, strides, paddings and dilations.
template <int kRows_, int kPlaces_, int kSlices_, int kDepth_, bool kGathered_, bool kKeepsTile_, bool kExchanged_,
          int kGroups_, int kHeight_, int kWidth_, int kStrideY_, int kStrideX_, int kPadY_, int kPadX_,
          int kDilationY_, int kDilationX_>
struct ConvolutionTraits {
  static constexpr int kRows = kRows_, kPlaces = kPlaces_, kSlices = kSlices_, kDepth = kDepth_, kGroups = kGroups_;
  static constexpr bool kGathered = kGathered_, kKeepsTile = kKeepsTile_, kExchanged = kExchanged_;
  static constexpr int kHeight = kHeight_, kWidth = kWidth_, kStrideY = kStrideY_, kStrideX = kStrideX_;
  static constexpr int kPadY = kPadY_, kPadX = kPadX_, kDilationY = kDilationY_, kDilationX = kDilationX_;
  static constexpr int kThreads = kRows * kPlaces / 64;  // of a slice
  static constexpr int kStep = (kRows + kPlaces) * kDepth;
  static constexpr int kStages = 3;  // steps in shared memory: all but one are copied ahead
};

// Channels are those of a group. A line of weights has one for each row, filled up to whole tiles. Where tiles are kept,
// a thread goes on with lanes neighbouring places.
struct ConvolutionSizes {
  int images, channels, height, width, outputs, out_height, out_width, line, splits, lanes;
};

// Where one of the result's places lies in the data: the first element of its window, and that one's row and column.
struct ConvolutionPlace {
  int first, y, x, unused;
};

// Where the element of a line is that has a place: lines that are copied by neighbouring threads begin in other banks.
template <class Of>
__device__ __forceinline__ int turned(int place, int line) {
  return Of::kExchanged ? place ^ line % 8 * 4 : place;
}

// What a thread copies: some weights of each step, and what is read for one of the result's places, or for one product
// of each of them.
template <class Of>
struct ConvolutionCopies {
  const float *image, *weight;
  const ConvolutionPlace* table;
  int images, channels, height, width, line, own, y, x, run, channel, step, steps;

  // Begins to copy the slice's step, and turns to its next one. What is not there becomes 0.
  __device__ __forceinline__ void begin(float* stage) {
    constexpr int kChunks = Of::kRows / 4, kLines = Of::kThreads / Of::kPlaces;
    const bool is_step = step < steps;
    const float* from = weight + static_cast<long long>(is_step ? step : 0) * Of::kDepth * line;
#pragma unroll
    for (int i = 0; i < Of::kDepth * kChunks / Of::kThreads; ++i) {
      const int at = own + i * Of::kThreads, column = at % kChunks * 4;
      copy_in_background(stage + at / kChunks * Of::kRows + column, from + at / kChunks * line + column, is_step ? 16 : 0);
    }
    float* const to = stage + Of::kRows * Of::kDepth + (Of::kExchanged ? 0 : own % Of::kPlaces);
    const int plane = height * width, first = own / Of::kPlaces;
    constexpr int kWindow = Of::kHeight * Of::kWidth;
    if (Of::kExchanged) {
      const int line_of_step = own % Of::kDepth, product = channel + line_of_step, tap = product % kWindow;
      const int down = tap / Of::kWidth * Of::kDilationY, right = tap % Of::kWidth * Of::kDilationX;
      const bool is_product = is_step && product < channels * kWindow;
      const float* const from_image = image + static_cast<long long>(product / kWindow) * images * plane;
      const int offset = down * width + right;
#pragma unroll 4
      for (int i = 0; i < Of::kPlaces * Of::kDepth / Of::kThreads; ++i) {
        const int place = own / Of::kDepth + i * (Of::kThreads / Of::kDepth);
        const ConvolutionPlace at = table[place];
        const bool there = is_product && is_inside(at.y + down, at.x + right);
        copy_word_in_background(to + line_of_step * Of::kPlaces + turned<Of>(place, line_of_step),
                                from_image + (there ? at.first + offset : 0), there ? 4 : 0);
      }
    } else if (Of::kGathered) {
#pragma unroll
      for (int i = 0; i < Of::kDepth / kLines; ++i) {
        const int product = channel + first + i * kLines, tap = product % kWindow;
        const int row = y + tap / Of::kWidth * Of::kDilationY, column = x + tap % Of::kWidth * Of::kDilationX;
        const bool there = is_step && product < channels * kWindow && is_inside(row, column);
        const long long offset = static_cast<long long>(product / kWindow) * plane + row * width + column;
        copy_word_in_background(to + (first + i * kLines) * Of::kPlaces, image + (there ? offset : 0), there ? 4 : 0);
      }
    } else {
      const int row = y + run / Of::kWidth * Of::kDilationY, column = x + run % Of::kWidth * Of::kDilationX;
      const bool is_there = is_step && is_inside(row, column);
      const long long begins = static_cast<long long>(channel + first) * plane + row * width + column;
#pragma unroll
      for (int i = 0; i < Of::kDepth / kLines; ++i) {
        const bool there = is_there && channel + first + i * kLines < channels;
        const long long offset = begins + static_cast<long long>(i * kLines) * plane;
        copy_word_in_background(to + (first + i * kLines) * Of::kPlaces, image + (there ? offset : 0), there ? 4 : 0);
      }
    }
    step += Of::kSlices;
    channel += Of::kSlices * Of::kDepth;
    if (!Of::kGathered) {
      const int filled = (channels + Of::kDepth - 1) / Of::kDepth * Of::kDepth;
      while (channel >= filled) channel -= filled, ++run;
    }
  }

  __device__ __forceinline__ bool is_inside(int row, int column) const {
    return static_cast<unsigned>(row) < static_cast<unsigned>(height) &&
           static_cast<unsigned>(column) < static_cast<unsigned>(width);
  }
};

// The threads of a block add up a part of the products of a tile of results, by its number: the results of each split lie
// one after the other. What keeps its tile writes none, but to at_tile where the thread goes on: the image of its places,
// which of its lanes there they are, the tile's first channel among those of all groups, and its channels from there on,
// 0 where no place is.
template <class Of>
__device__ __forceinline__ void convolution_of_floats(float* shared, const float* data, const float* weight, float* out,
                                                      long long* at_tile, ConvolutionSizes of, int block) {
  constexpr int kThreads = Of::kThreads, kDepth = Of::kDepth, kStages = Of::kStages, kSlices = Of::kSlices;
  static_assert(kThreads % Of::kPlaces == 0 && kThreads % 32 == 0 && 8 % kSlices == 0 && kStages == 3, "tiles");
  const int slice = int(threadIdx.x) / kThreads, own = int(threadIdx.x) % kThreads;
  const int places = of.out_height * of.out_width, all = of.images * places;
  const int row_blocks = (of.outputs + Of::kRows - 1) / Of::kRows;
  const int place_blocks = (all + Of::kPlaces - 1) / Of::kPlaces;
  const int first_row = block % row_blocks * Of::kRows;
  block /= row_blocks;
  const int first_place = block % place_blocks * Of::kPlaces;
  block /= place_blocks;
  const int group = block % Of::kGroups, split = block / Of::kGroups;
  if (Of::kKeepsTile) {
    const int place = first_place + int(threadIdx.x) % (Of::kPlaces / of.lanes) * of.lanes;
    at_tile[0] = place / places, at_tile[1] = place % places / of.lanes;
    at_tile[2] = group * of.outputs + first_row, at_tile[3] = place < all ? of.outputs - first_row : 0;
  }

  constexpr int kRuns = Of::kGathered ? 1 : Of::kHeight * Of::kWidth;
  const int run_depth = Of::kGathered ? of.channels * Of::kHeight * Of::kWidth : of.channels;
  const int steps_of_run = (run_depth + kDepth - 1) / kDepth, steps = kRuns * steps_of_run;
  const int rounds = (steps + kSlices - 1) / kSlices, most = (rounds + of.splits - 1) / of.splits;
  const int begin = min(split * most, rounds), count = min(most, rounds - begin);

  ConvolutionCopies<Of> copies;
  {
    const int place = first_place + own % Of::kPlaces, image = place / places, at = place % places;
    const int step = begin * kSlices + slice, plane = of.height * of.width;
    const bool is_place = place < all;
    const int image_of_group = is_place && !Of::kExchanged ? image * Of::kGroups + group : 0;
    copies.image = data + static_cast<long long>(image_of_group) * of.channels * plane;
    // A place that is not there is far outside of all images.
    copies.y = is_place ? at / of.out_width * Of::kStrideY - Of::kPadY : -(1 << 30);
    copies.x = at % of.out_width * Of::kStrideX - Of::kPadX;
    copies.images = of.images, copies.channels = of.channels, copies.height = of.height, copies.width = of.width;
    copies.line = of.line;
    copies.weight = weight + static_cast<long long>(group) * steps * kDepth * of.line + first_row;
    copies.own = own, copies.step = step, copies.steps = min(steps, (begin + count) * kSlices);
    copies.run = Of::kGathered ? 0 : step / steps_of_run;
    copies.channel = (Of::kGathered ? step : step % steps_of_run) * kDepth;
  }
  if (Of::kExchanged) {
    auto* const table = reinterpret_cast<ConvolutionPlace*>(shared + kSlices * Of::kStep * kStages);
    for (int i = int(threadIdx.x); i < Of::kPlaces; i += kThreads * kSlices) {
      const int place = first_place + i, at = place % places;
      const int y = at / of.out_width * Of::kStrideY - Of::kPadY, x = at % of.out_width * Of::kStrideX - Of::kPadX;
      const int first = place / places * of.height * of.width + y * of.width + x;
      table[i] = ConvolutionPlace{first, place < all ? y : -(1 << 30), x, 0};
    }
    copies.table = table;
    __syncthreads();
  }
  float* const stages = shared + slice * Of::kStep;
  constexpr int kStage = kSlices * Of::kStep;
  constexpr int kWide = Of::kPlaces < 64 ? Of::kPlaces / 8 : 8, kDown = 32 / kWide;  // a warp's threads
  constexpr int kAcross = Of::kPlaces / 8 / kWide;                                   // warps side by side
  const int lane = own % 32, warp = own / 32;
  const int down = 4 * (warp / kAcross * kDown + lane / kWide), right = 4 * (warp % kAcross * kWide + lane % kWide);

  float sums[8][8];
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i / 8][i % 8] = 0.0f;
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < count) copies.begin(stages + i * kStage);
    end_copy_group();
  }
  int at = 0, ahead = kStages - 1;
  for (int i = 0; i < count; ++i) {
    wait_for_copies_but_last();
    __syncthreads();
    if (i + kStages - 1 < count) copies.begin(stages + ahead * kStage);
    end_copy_group();
    const float* const left = stages + at * kStage + down;
    const float* const top = stages + at * kStage + Of::kRows * kDepth;
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float weights[8], read[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 a = *reinterpret_cast<const float4*>(left + k * Of::kRows + half * (Of::kRows / 2));
        const float4 b =
            *reinterpret_cast<const float4*>(top + k * Of::kPlaces + turned<Of>(half * (Of::kPlaces / 2) + right, k));
        weights[4 * half] = a.x, weights[4 * half + 1] = a.y, weights[4 * half + 2] = a.z, weights[4 * half + 3] = a.w;
        read[4 * half] = b.x, read[4 * half + 1] = b.y, read[4 * half + 2] = b.z, read[4 * half + 3] = b.w;
      }
#pragma unroll
      for (int row = 0; row < 8; ++row)
#pragma unroll
        for (int column = 0; column < 8; ++column)
          sums[row][column] = fmaf(weights[row], read[column], sums[row][column]);
    }
    at = at + 1 == kStages ? 0 : at + 1;
    ahead = ahead + 1 == kStages ? 0 : ahead + 1;
  }

  // Each slice adds up some rows of all slices' sums.
  constexpr int kOwnRows = 8 / kSlices;
  if (kSlices > 1) {
    wait_for_copies();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) shared[(slice * 64 + i) * kThreads + own] = sums[i / 8][i % 8];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwnRows * 8; ++i) {
      float sum = 0.0f;
#pragma unroll
      for (int other = 0; other < kSlices; ++other)
        sum += shared[(other * 64 + slice * kOwnRows * 8 + i) * kThreads + own];
      sums[i / 8][i % 8] = sum;
    }
  }
  if (Of::kKeepsTile) {
    wait_for_copies();
    __syncthreads();  // all have read what the tile takes the place of
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int number = slice * kOwnRows + i, row = (number < 4 ? 0 : Of::kRows / 2 - 4) + down + number;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float4*>(shared + row * Of::kPlaces + half * (Of::kPlaces / 2) + right) =
            make_float4(sums[i][4 * half], sums[i][4 * half + 1], sums[i][4 * half + 2], sums[i][4 * half + 3]);
    }
    __syncthreads();
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = first_place + half * (Of::kPlaces / 2) + right;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int number = slice * kOwnRows + i;
      const int row = first_row + (number < 4 ? 0 : Of::kRows / 2 - 4) + down + number;
      if (row >= of.outputs) continue;
      auto result = [&](int at_place) {
        const long long image = static_cast<long long>(split) * of.images + at_place / places;
        return out + ((image * Of::kGroups + group) * of.outputs + row) * places + at_place % places;
      };
      if (places % 4 == 0) {  // four neighbours are of one image
        if (place < all)
          *reinterpret_cast<float4*>(result(place)) =
              make_float4(sums[i][4 * half], sums[i][4 * half + 1], sums[i][4 * half + 2], sums[i][4 * half + 3]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (place + j < all) *result(place + j) = sums[i][4 * half + j];
      }
    }
  }
}

}  // namespace tvm_stitch

#endif  // TVM_STITCH_CONVOLUTION_FLOAT
