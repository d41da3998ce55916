// The last look at a block of rows where heads are compared, panel by panel with all heads: weights on each key and each
// bin of keys, and products of the roots of the weights of two heads. Here the rows of all heads are settled.
#pragma once

#include "columns.h"

namespace mh {
namespace MH_VARIANT {

// Heads whose products are made at once: a square of accumulators.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int SIDE = 4;
#else
constexpr int SIDE = 2;
#endif
constexpr int64_t FLUSH = 4;  // panels whose products are summed in float32

template <class E>
class LastLook {
 public:
  LastLook(const Facts &f, Block<E> &b, const Sums &sums)
      : f_(f), b_(b), sums_(sums), columns_(f, b, sums), heads_(f.p.heads), padded_(round_up(f.p.heads, SIDE)) {}

  void run() {
    std::memset(b_.products, 0, sizeof(vf) * static_cast<size_t>(padded_ * padded_));
    std::memset(b_.roots, 0, sizeof(float) * static_cast<size_t>(padded_ * MR * PANEL));
    int64_t held = 0;
    for (int64_t panel = 0; panel < f_.panels; panel++) {
      std::memset(b_.held, 0, sizeof(vf) * static_cast<size_t>(heads_ * VECTORS));
      int64_t bin = -1;
      for (int64_t tile = 0; tile * MR < b_.rows; tile++) {
        bool any = false;
        for (int64_t first = tile * MR; first < at_most((tile + 1) * MR, b_.rows);) {
          const int64_t end = columns_.run_of(first, at_most((tile + 1) * MR, b_.rows));
          if (bin >= 0 && columns_.bin_of(first) != bin) put_all(panel, bin);
          bin = columns_.bin_of(first);
          for (int64_t head = 0; head < heads_; head++) any |= take(head, panel, tile, first, end);
          first = end;
        }
        if (any) {
          clear_beyond(b_.rows - tile * MR);
          multiply_heads();
        }
      }
      if (bin >= 0) put_all(panel, bin);
      if (++held % FLUSH == 0) flush();
    }
    flush();
    for (int64_t head = 0; head < heads_; head++) columns_.add_sunk(head);
  }

 private:
  const Facts &f_;
  Block<E> &b_;
  const Sums &sums_;
  Columns<E> columns_;
  int64_t heads_, padded_;

  // Roots of weights of some rows of a tile, kept for products, and their squares added up for each key.
  MH_INLINE bool take(int64_t head, int64_t panel, int64_t tile, int64_t first, int64_t end) {
    float *roots = b_.roots + (head * MR - tile * MR) * PANEL;
    const bool some = b_.kind(f_, head, panel, tile) != 0;
    const float *factor = b_.factor + head * f_.block_rows;
    vf held[VECTORS];
    const bool columns = sums_.columns;
    each<VECTORS>([&](auto c) __attribute__((always_inline)) { held[c] = b_.held[head * VECTORS + c]; });
    const int64_t after = b_.next_tile(f_);
    for (int64_t r = first; r < end; r++) {
      if (!some || factor[r] == 0.f) {
        std::memset(roots + r * PANEL, 0, sizeof(float) * PANEL);
        continue;
      }
      const float *line = b_.line(f_, head, panel, r);
      for (int at = 0; at < PANEL; at += 16) __builtin_prefetch(line + after + at, 0, 2);
      const vf by = splat(factor[r]);
      each<VECTORS>([&](auto c) __attribute__((always_inline)) {
        const vf e = load(line + c * W) * by;
        store(roots + r * PANEL + c * W, e);
        if (columns) held[c] = fma(e, e, held[c]);
      });
    }
    each<VECTORS>([&](auto c) __attribute__((always_inline)) { b_.held[head * VECTORS + c] = held[c]; });
    return some;
  }

  // Rows that only fill up the last tile.
  void clear_beyond(int64_t rows) {
    for (int64_t head = 0; rows < MR && head < heads_; head++)
      std::memset(b_.roots + (head * MR + rows) * PANEL, 0, sizeof(float) * static_cast<size_t>((MR - rows) * PANEL));
  }

  void put_all(int64_t panel, int64_t bin) {
    for (int64_t head = 0; head < heads_; head++) {
      vf *held = b_.held + head * VECTORS;
      if (sums_.columns) columns_.put(head, panel, bin, held);
      for (int c = 0; c < VECTORS; c++) held[c] = vf{};
    }
  }

  void multiply_heads() {
    for (int64_t h = 0; h < padded_; h += SIDE) {
      for (int64_t g = 0; g < h; g += SIDE) multiply_square<false>(h, g);
      multiply_square<true>(h, h);
    }
  }

  // SAME: the heads of both sides are the same, half of whose products are enough.
  template <bool SAME>
  void multiply_square(int64_t h, int64_t g) {
    vf acc[SIDE][SIDE];
    each<SIDE>([&](auto x) __attribute__((always_inline)) {
      each<SIDE>([&](auto y) __attribute__((always_inline)) { acc[x][y] = b_.products[(h + x) * padded_ + g + y]; });
    });
    const float *left = b_.roots + h * MR * PANEL, *right = b_.roots + g * MR * PANEL;
    for (int64_t at = 0; at < MR * PANEL; at += W) {
      vf a[SIDE];
      each<SIDE>([&](auto x) __attribute__((always_inline)) { a[x] = load(left + x * MR * PANEL + at); });
      each<SIDE>([&](auto y) __attribute__((always_inline)) {
        const vf other = SAME ? a[y] : load(right + y * MR * PANEL + at);
        each<SIDE>([&](auto x) __attribute__((always_inline)) {
          if constexpr (!SAME || y <= x) acc[x][y] = fma(a[x], other, acc[x][y]);
        });
      });
    }
    each<SIDE>([&](auto x) __attribute__((always_inline)) {
      each<SIDE>([&](auto y) __attribute__((always_inline)) { b_.products[(h + x) * padded_ + g + y] = acc[x][y]; });
    });
  }

  // Products go to the sums in float64, which the many small ones would otherwise lose digits in.
  void flush() {
    for (int64_t h = 0; h < heads_; h++) {
      for (int64_t g = 0; g <= h; g++) {
        vf &held = b_.products[h * padded_ + g];
        sums_.gram[h * heads_ + g] += static_cast<double>(sum_lanes(held));
        held = vf{};
      }
      for (int64_t g = h + 1; g < round_up(h + 1, SIDE); g++) b_.products[h * padded_ + g] = vf{};
    }
  }

};

}  // namespace MH_VARIANT
}  // namespace mh
