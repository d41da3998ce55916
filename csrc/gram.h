// The last look at a block of rows, panel by panel with all heads: weights on each key and each bin of keys, and products
// of the roots of the weights of two heads. Here the rows of all heads are settled, so that weights are what they are.
#pragma once

#include "spread.h"

namespace mh {
namespace MH_VARIANT {

// Heads whose products are made at once: a square of accumulators.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int SIDE = 4;
#else
constexpr int SIDE = 2;
#endif
constexpr int64_t FLUSH = 4;  // panels whose products are summed in float32

// What a chunk of rows brings: sums in the order of its rows, added up in the order of chunks.
struct Sums {
  float *columns;           // (heads, panels * PANEL)
  double *pooled, *pooled_sunk;  // (heads, bins, bins)
  double *gram;             // (heads, heads)
};

template <class E>
class LastLook {
 public:
  LastLook(const Facts &f, Block<E> &b, const Sums &sums)
      : f_(f), b_(b), sums_(sums), heads_(f.p.heads), padded_(round_up(f.p.heads, SIDE)) {}

  void run() {
    if (sums_.gram) {
      std::memset(b_.products, 0, sizeof(vf) * static_cast<size_t>(padded_ * padded_));
      std::memset(b_.roots, 0, sizeof(float) * static_cast<size_t>(padded_ * MR * PANEL));
    }
    int64_t held = 0;
    for (int64_t panel = 0; panel < f_.panels; panel++) {
      std::memset(b_.held, 0, sizeof(vf) * static_cast<size_t>(heads_ * VECTORS));
      int64_t bin = -1;
      for (int64_t tile = 0; tile * MR < b_.rows; tile++) {
        bool any = false;
        for (int64_t first = tile * MR; first < at_most((tile + 1) * MR, b_.rows);) {
          const int64_t end = run_of(first, at_most((tile + 1) * MR, b_.rows));
          if (bin >= 0 && bin_of(first) != bin) put_all(panel, bin);
          bin = bin_of(first);
          for (int64_t head = 0; head < heads_; head++) any |= take(head, panel, tile, first, end);
          first = end;
        }
        if (any && sums_.gram) {
          clear_beyond(b_.rows - tile * MR);
          multiply_heads();
        }
      }
      if (bin >= 0) put_all(panel, bin);
      if (sums_.gram && ++held % FLUSH == 0) flush();
    }
    if (sums_.gram) flush();
    for (int64_t head = 0; head < heads_; head++) add_sunk(head);
  }

 private:
  const Facts &f_;
  Block<E> &b_;
  const Sums &sums_;
  int64_t heads_, padded_;

  int32_t bin_of(int64_t r) const { return f_.q_bins ? f_.q_bins[b_.first + r] : 0; }

  // The end of the rows from `first` on that lie in one bin.
  int64_t run_of(int64_t first, int64_t last) const {
    int64_t end = first + 1;
    while (end < last && bin_of(end) == bin_of(first)) end++;
    return end;
  }

  // Roots of weights of some rows of a tile, kept for products, and their squares added up for each key.
  MH_INLINE bool take(int64_t head, int64_t panel, int64_t tile, int64_t first, int64_t end) {
    float *roots = b_.roots + (head * MR - tile * MR) * PANEL;
    const bool some = b_.kind(f_, head, panel, tile) != 0;
    const float *factor = b_.factor + head * f_.block_rows;
    vf held[VECTORS];
    each<VECTORS>([&](auto c) __attribute__((always_inline)) { held[c] = b_.held[head * VECTORS + c]; });
    for (int64_t r = first; r < end; r++) {
      if (!some || factor[r] == 0.f) {
        if (sums_.gram) std::memset(roots + r * PANEL, 0, sizeof(float) * PANEL);
        continue;
      }
      const float *line = b_.line(f_, head, panel, r);
      const vf by = splat(factor[r]);
      each<VECTORS>([&](auto c) __attribute__((always_inline)) {
        const vf e = load(line + c * W) * by;
        if (sums_.gram) store(roots + r * PANEL + c * W, e);
        held[c] = fma(e, e, held[c]);
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
      if (sums_.columns) put(head, panel, bin, held);
      for (int c = 0; c < VECTORS; c++) held[c] = vf{};
    }
  }

  // Weights of rows of one bin on the keys of a panel.
  void put(int64_t head, int64_t panel, int64_t bin, const vf *held) {
    float *columns = sums_.columns + (head * f_.panels + panel) * PANEL;
    for (int c = 0; c < VECTORS; c++) store(columns + c * W, load(columns + c * W) + held[c]);
    if (!sums_.pooled) return;
    double *pooled = sums_.pooled + (head * f_.wanted.bins + bin) * f_.wanted.bins;
    for (int64_t i = f_.piece_at[panel]; i < f_.piece_at[panel + 1]; i++) {
      const Piece &piece = f_.pieces[i];
      vf total = {};
      if (piece.to - piece.from == PANEL) {
        for (int c = 0; c < VECTORS; c++) total += held[c];
      } else {
        const uint64_t keys = bits_between(piece.from, piece.to - 1);
        for (int c = piece.from / W; c <= (piece.to - 1) / W; c++)
          total += pick(static_cast<uint32_t>(keys >> (c * W)), held[c], vf{});
      }
      pooled[piece.bin] += static_cast<double>(sum_lanes(total));
    }
  }

  void multiply_heads() {
    for (int64_t h = 0; h < padded_; h += SIDE)
      for (int64_t g = 0; g <= h; g += SIDE) multiply_square(h, g);
  }

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
        const vf other = load(right + y * MR * PANEL + at);
        each<SIDE>([&](auto x) __attribute__((always_inline)) { acc[x][y] = fma(a[x], other, acc[x][y]); });
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

  void add_sunk(int64_t head) {
    const float *factor = b_.factor + head * f_.block_rows;
    for (int64_t panel = 0; panel < f_.panels; panel++) {
      int64_t place = f_.sunk_at[panel];
      for (uint64_t rest = f_.sunk[panel]; rest; rest &= rest - 1, place++) {
        const int64_t j = __builtin_ctzll(rest), key = panel * PANEL + j;
        const float *given =
            f_.found.sunk_weights + (place * heads_ + head) * f_.wanted.row_count + b_.first;
        const int32_t bin = f_.wanted.k_bins ? f_.wanted.k_bins[f_.batch * f_.wanted.k_bins_batch + key] : -1;
        for (int64_t r = 0; r < b_.rows; r++) {
          if (factor[r] == 0.f) continue;
          if (sums_.columns) sums_.columns[head * f_.panels * PANEL + key] += given[r];
          if (sums_.pooled && bin >= 0)
            sums_.pooled_sunk[(head * f_.wanted.bins + bin_of(r)) * f_.wanted.bins + bin] +=
                static_cast<double>(given[r]);
        }
      }
    }
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
