// Weights on each key and each bin of keys, of a head whose rows are settled.
#pragma once

#include "stash.h"

namespace mh {
namespace MH_VARIANT {

// What a chunk of rows brings: sums in the order of its rows, added up in the order of chunks.
struct Sums {
  float *columns;           // (heads, panels * PANEL)
  double *pooled, *pooled_sunk;  // (heads, bins, bins)
  double *gram;             // (heads, heads)
};

template <class E>
class Columns {
 public:
  Columns(const Facts &f, Block<E> &b, const Sums &sums) : f_(f), b_(b), sums_(sums) {}

  int32_t bin_of(int64_t r) const { return f_.q_bins ? f_.q_bins[b_.first + r] : 0; }

  // The end of the rows from `first` on that lie in one bin.
  int64_t run_of(int64_t first, int64_t last) const {
    int64_t end = first + 1;
    while (end < last && bin_of(end) == bin_of(first)) end++;
    return end;
  }

  // All of a head, where weights are kept.
  void add(int64_t head) {
    for (int64_t first = 0; first < b_.rows;) {
      const int64_t end = run_of(first, b_.rows);
      for (int64_t panel = b_.from; panel < b_.to; panel++) add_rows(head, panel, first, end);
      first = end;
    }
    add_sunk(head);
  }

  // Weights of rows of one bin on the keys of a panel.
  void put(int64_t head, int64_t panel, int64_t bin, const vf *held) const {
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

  void add_sunk(int64_t head) const {
    const float *factor = b_.factor + head * f_.block_rows;
    for (int64_t panel = 0; panel < f_.panels; panel++) {
      int64_t place = f_.sunk_at[panel];
      for (uint64_t rest = f_.sunk[panel]; rest; rest &= rest - 1, place++) {
        const int64_t j = __builtin_ctzll(rest), key = panel * PANEL + j;
        const float *given =
            f_.found.sunk_weights + (place * f_.p.heads + head) * f_.wanted.row_count + b_.first;
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

 private:
  const Facts &f_;
  Block<E> &b_;
  const Sums &sums_;

  void add_rows(int64_t head, int64_t panel, int64_t first, int64_t end) const {
    const float *factor = b_.factor + head * f_.block_rows;
    vf held[VECTORS];
    each<VECTORS>([&](auto c) __attribute__((always_inline)) { held[c] = vf{}; });
    bool any = false;
    for (int64_t from = first, to; from < end; from = to) {  // what lies in one tile
      to = at_most(end, (from / MR + 1) * MR);
      if (!b_.kind(f_, head, panel, from / MR)) continue;
      any = true;
      const float *line = b_.line(f_, head, panel, from);
      for (int64_t r = from; r < to; r++, line += PANEL) {
        if (factor[r] == 0.f) continue;  // whatever it holds
        const vf by = splat(factor[r]);
        each<VECTORS>([&](auto c) __attribute__((always_inline)) { held[c] = fma(load(line + c * W), by, held[c]); });
      }
    }
    if (any) put(head, panel, bin_of(first), held);
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
