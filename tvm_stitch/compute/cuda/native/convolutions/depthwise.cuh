// SPDX-License-Identifier: Apache-2.0
// Depthwise convolutions: sums in float32. No thread waits for another one.
//
// Channels innermost: a thread has kLanes neighbouring channels at kAcross neighbouring places of a row. It loads each element of a row of
// the window once for all of its places. Neighbouring threads have neighbouring channels, then places, then rows, so
// that a block reads an area of the image through the first-level cache.
//
// Channels first: a thread has neighbouring rows of one column, and loads each element of a column of the window once
// for all of its rows. Neighbouring threads have neighbouring columns, then rows, then channels, so that each load of a
// warp reads neighbouring elements.
#ifndef TVM_STITCH_DEPTHWISE
#define TVM_STITCH_DEPTHWISE

namespace tvm_stitch {

// kLanes elements that are loaded and stored at once.
template <class Element, int kLanes>
struct alignas(sizeof(Element) * kLanes) DepthwiseVector {
  Element at[kLanes];
};

// What a kernel is compiled for.
//   kLanes, kAcross: channels and places of a thread.
//   kWide, kPlaces, kRows: threads of a block along channels, places and rows.
//   The others: extents of the window, strides, paddings and dilations.
template <int kLanes_, int kAcross_, int kWide_, int kPlaces_, int kRows_, int kHeight_, int kWidth_, int kStrideY_,
          int kStrideX_, int kPadY_, int kPadX_, int kDilationY_, int kDilationX_>
struct DepthwiseTraits {
  static constexpr int kLanes = kLanes_, kAcross = kAcross_, kWide = kWide_, kPlaces = kPlaces_, kRows = kRows_;
  static constexpr int kHeight = kHeight_, kWidth = kWidth_, kStrideY = kStrideY_, kStrideX = kStrideX_;
  static constexpr int kPadY = kPadY_, kPadX = kPadX_, kDilationY = kDilationY_, kDilationX = kDilationX_;
  static constexpr int kSpan = (kAcross - 1) * kStrideX + (kWidth - 1) * kDilationX + 1;  // columns that a thread reads
};

struct DepthwiseSizes {
  int images, channels, height, width, out_height, out_width;
};

// Computes a thread's sums of data <images, height, width, channels> and weight <window, channels>: kLanes channels of
// neighbouring places of a row of <images, out_height, out_width, channels>. Threads with results give them to ``end``.
template <class Of, class Element, class End>
__device__ __forceinline__ void depthwise(const Element* data, const Element* weight, DepthwiseSizes size, int block,
                                          int thread, const End& end) {
  typedef DepthwiseVector<Element, Of::kLanes> Vector;
  if (size.images <= 0 || size.out_height <= 0 || size.out_width <= 0) return;
  const int chunks = (size.channels / Of::kLanes + Of::kWide - 1) / Of::kWide;
  const int across = (size.out_width + Of::kAcross * Of::kPlaces - 1) / (Of::kAcross * Of::kPlaces);
  const int down = (size.out_height + Of::kRows - 1) / Of::kRows;
  const int channel = (block % chunks * Of::kWide + thread % Of::kWide) * Of::kLanes;
  const int tile = block / chunks, within = thread / Of::kWide;
  const int x = (tile % across * Of::kPlaces + within % Of::kPlaces) * Of::kAcross;
  const int y = tile / across % down * Of::kRows + within / Of::kPlaces;
  const long long image = tile / across / down;
  if (channel >= size.channels || x >= size.out_width || y >= size.out_height || image >= size.images) return;
  const Element* from = data + image * size.height * size.width * size.channels + channel;
  float sums[Of::kAcross][Of::kLanes];
#pragma unroll
  for (int t = 0; t < Of::kAcross; ++t)
#pragma unroll
    for (int j = 0; j < Of::kLanes; ++j) sums[t][j] = 0.0f;
  const int left = x * Of::kStrideX - Of::kPadX;
#pragma unroll
  for (int ky = 0; ky < Of::kHeight; ++ky) {
    const int row = y * Of::kStrideY - Of::kPadY + ky * Of::kDilationY;
    if ((unsigned)row >= (unsigned)size.height) continue;
    float factors[Of::kWidth][Of::kLanes];
#pragma unroll
    for (int kx = 0; kx < Of::kWidth; ++kx) {
      const Vector loaded = *(const Vector*)(weight + (long long)(ky * Of::kWidth + kx) * size.channels + channel);
#pragma unroll
      for (int j = 0; j < Of::kLanes; ++j) factors[kx][j] = (float)loaded.at[j];
    }
    const Element* line = from + (long long)row * size.width * size.channels;
#pragma unroll
    for (int i = 0; i < Of::kSpan; ++i) {
      bool is_read = false;
#pragma unroll
      for (int t = 0; t < Of::kAcross; ++t) {
        const int offset = i - t * Of::kStrideX;
        is_read |= offset >= 0 && offset % Of::kDilationX == 0 && offset / Of::kDilationX < Of::kWidth;
      }
      if (!is_read || (unsigned)(left + i) >= (unsigned)size.width) continue;
      const Vector loaded = *(const Vector*)(line + (long long)(left + i) * size.channels);
      float values[Of::kLanes];
#pragma unroll
      for (int j = 0; j < Of::kLanes; ++j) values[j] = (float)loaded.at[j];
#pragma unroll
      for (int t = 0; t < Of::kAcross; ++t) {
        const int offset = i - t * Of::kStrideX;
        if (offset < 0 || offset % Of::kDilationX || offset / Of::kDilationX >= Of::kWidth) continue;
#pragma unroll
        for (int j = 0; j < Of::kLanes; ++j)
          sums[t][j] = fmaf(values[j], factors[offset / Of::kDilationX][j], sums[t][j]);
      }
    }
  }
  end.template take<Of>(image, channel, y, x, size, sums);
}

// What a kernel for channels first is compiled for.
//   kDown: rows of a thread.
//   kThreads: threads of a block.
//   The others: extents of the window, strides, paddings and dilations.
template <int kDown_, int kThreads_, int kHeight_, int kWidth_, int kStrideY_, int kStrideX_, int kPadY_, int kPadX_,
          int kDilationY_, int kDilationX_>
struct DepthwiseRows {
  static constexpr int kDown = kDown_, kThreads = kThreads_, kHeight = kHeight_, kWidth = kWidth_;
  static constexpr int kStrideY = kStrideY_, kStrideX = kStrideX_, kPadY = kPadY_, kPadX = kPadX_;
  static constexpr int kDilationX = kDilationX_;
  static constexpr int kReach = (kDown - 1) * kStrideY + (kHeight - 1) * kDilationY_ + 1;  // rows that a thread reads
  // The row of the window that the i-th row meets for the r-th of the results, or -1.
  static __device__ constexpr int window_row(int i, int r) {
    return i < r * kStrideY || (i - r * kStrideY) % kDilationY_ || (i - r * kStrideY) / kDilationY_ >= kHeight
               ? -1
               : (i - r * kStrideY) / kDilationY_;
  }
};

// Computes a thread's sums of data <images, channels, height, width> and weight <channels, window>: neighbouring rows of
// a column of <images, channels, out_height, out_width>. Threads with results give them to ``end``.
template <class Of, class Element, class End>
__device__ __forceinline__ void depthwise_rows(const Element* data, const Element* weight, DepthwiseSizes size,
                                               int block, int thread, const End& end) {
  const long long planes = (long long)size.images * size.channels;
  if (planes <= 0 || size.out_height <= 0 || size.out_width <= 0) return;
  const long long number = (long long)block * Of::kThreads + thread, strip = number / size.out_width;
  const int strips = (size.out_height + Of::kDown - 1) / Of::kDown;
  const int x = (int)(number % size.out_width), y = (int)(strip % strips) * Of::kDown;
  const long long plane = strip / strips;
  if (plane >= planes) return;
  const Element* from = data + plane * size.height * size.width;
  const Element* factors = weight + plane % size.channels * (Of::kHeight * Of::kWidth);
  float sums[Of::kDown];
#pragma unroll
  for (int r = 0; r < Of::kDown; ++r) sums[r] = 0.0f;
  const int left = x * Of::kStrideX - Of::kPadX, top = y * Of::kStrideY - Of::kPadY;
#pragma unroll
  for (int kx = 0; kx < Of::kWidth; ++kx) {
    const int column = left + kx * Of::kDilationX;
    if ((unsigned)column >= (unsigned)size.width) continue;
    float own[Of::kHeight];
#pragma unroll
    for (int ky = 0; ky < Of::kHeight; ++ky) own[ky] = (float)factors[ky * Of::kWidth + kx];
#pragma unroll
    for (int i = 0; i < Of::kReach; ++i) {
      bool is_met = false;
#pragma unroll
      for (int r = 0; r < Of::kDown; ++r) is_met |= Of::window_row(i, r) >= 0;
      if (!is_met || (unsigned)(top + i) >= (unsigned)size.height) continue;
      const float value = (float)from[(long long)(top + i) * size.width + column];
#pragma unroll
      for (int r = 0; r < Of::kDown; ++r) {
        const int ky = Of::window_row(i, r);
        if (ky >= 0) sums[r] = fmaf(value, own[ky], sums[r]);
      }
    }
  }
  end.template take<Of>(plane, y, x, size, sums);
}

// Stores the results.
template <class Result>
struct DepthwiseResults {
  Result* out;

  template <class Of>
  __device__ __forceinline__ void take(long long image, int channel, int y, int x, DepthwiseSizes size,
                                       const float (&sums)[Of::kAcross][Of::kLanes]) const {
    Result* to = out + ((image * size.out_height + y) * size.out_width + x) * size.channels + channel;
#pragma unroll
    for (int t = 0; t < Of::kAcross; ++t) {
      if (x + t >= size.out_width) break;
      DepthwiseVector<Result, Of::kLanes> stored;
#pragma unroll
      for (int j = 0; j < Of::kLanes; ++j) stored.at[j] = (Result)sums[t][j];
      *(DepthwiseVector<Result, Of::kLanes>*)(to + (long long)t * size.channels) = stored;
    }
  }

  template <class Of>
  __device__ __forceinline__ void take(long long plane, int y, int x, DepthwiseSizes size,
                                       const float (&sums)[Of::kDown]) const {
#pragma unroll
    for (int r = 0; r < Of::kDown; ++r)
      if (y + r < size.out_height) out[(plane * size.out_height + y + r) * size.out_width + x] = (Result)sums[r];
  }
};

// Keeps the sums for an epilogue, and their place: image, vector of kLanes channels, row, column, and number of
// neighbours along the row or the column. The number is 0 before.
struct DepthwiseKept {
  float* kept;
  long long* at;

  template <class Of>
  __device__ __forceinline__ void take(long long image, int channel, int y, int x, DepthwiseSizes size,
                                       const float (&sums)[Of::kAcross][Of::kLanes]) const {
#pragma unroll
    for (int t = 0; t < Of::kAcross; ++t)
#pragma unroll
      for (int j = 0; j < Of::kLanes; ++j) kept[t * Of::kLanes + j] = sums[t][j];
    at[0] = image, at[1] = channel / Of::kLanes, at[2] = y, at[3] = x;
    at[4] = min(Of::kAcross, size.out_width - x);
  }

  template <class Of>
  __device__ __forceinline__ void take(long long plane, int y, int x, DepthwiseSizes size,
                                       const float (&sums)[Of::kDown]) const {
#pragma unroll
    for (int r = 0; r < Of::kDown; ++r) kept[r] = sums[r];
    at[0] = plane / size.channels, at[1] = plane % size.channels, at[2] = y, at[3] = x;
    at[4] = min(Of::kDown, size.out_height - y);
  }
};

}  // namespace tvm_stitch
#endif
