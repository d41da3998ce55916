// The strongest links of some rows: the keys of their largest scores, which are those of their largest weights. Scores
// are compared, not weights, so that rounding joins nothing; of equal ones the lower key comes first.
#pragma once

#include <algorithm>

#include "stash.h"

namespace mh {
namespace MH_VARIANT {

template <class E>
class Links {
 public:
  Links(const Facts &f, Block<E> &b, int64_t head) : f_(f), b_(b), head_(head), most_(f.wanted.links) {}

  // Finds the rows of a block that are asked for; the same for all heads.
  static void find(const Facts &f, Block<E> &b) {
    const int64_t count = f.wanted.links > 0 ? f.wanted.link_count : 0, *rows = f.wanted.link_rows;
    const int64_t after = b.first + b.rows;
    b.link_first = rows ? std::lower_bound(rows, rows + count, b.first) - rows : at_most(count, b.first);
    b.link_last = rows ? std::lower_bound(rows, rows + count, after) - rows : at_most(count, after);
    for (int64_t r = 0; r < f.block_rows; r++) b.link_at[r] = -1;
    for (int64_t i = b.link_first; i < b.link_last; i++)
      b.link_at[(rows ? rows[i] : i) - b.first] = static_cast<int32_t>(i - b.link_first);
  }

  bool asked() const { return b_.link_last > b_.link_first; }

  void begin() {
    for (int64_t i = 0; i < b_.link_last - b_.link_first; i++) b_.link_counts[i] = 0;
  }

  // Scores of a row and a panel, and the largest of each lane.
  void take(int64_t index, int64_t r, uint64_t allowed, const float *scores, vf most) {
    const int64_t at = b_.link_at[r];
    if (at < 0) return;
    float *held = b_.link_scores + at * most_;
    int32_t *keys = b_.link_keys + at * most_;
    int64_t count = b_.link_counts[at];
    if (count == most_ && !any_above(most, splat(held[count - 1]))) return;
    for (uint64_t rest = allowed & f_.kept[index]; rest; rest &= rest - 1) {
      const int j = __builtin_ctzll(rest);
      if (!(scores[j] > (count == most_ ? held[count - 1] : -INF))) continue;
      int64_t place = count < most_ ? count++ : count - 1;
      for (; place > 0 && held[place - 1] < scores[j]; place--) {
        held[place] = held[place - 1];
        keys[place] = keys[place - 1];
      }
      held[place] = scores[j];
      keys[place] = static_cast<int32_t>(index * PANEL + j);
    }
    b_.link_counts[at] = count;
  }

  // Writes what was found, once the rows are settled.
  void tell() {
    for (int64_t r = 0; r < b_.rows; r++) {
      const int64_t at = b_.link_at[r];
      if (at < 0) continue;
      const int64_t to = ((f_.batch * f_.p.heads + head_) * f_.wanted.link_count + b_.link_first + at) * most_;
      for (int64_t i = 0; i < most_; i++) {
        const bool there = i < b_.link_counts[at];
        if (f_.found.link_keys) f_.found.link_keys[to + i] = there ? b_.link_keys[at * most_ + i] : -1;
        if (f_.found.link_weights) f_.found.link_weights[to + i] = there ? weight(r, b_.link_scores[at * most_ + i]) : 0.f;
      }
    }
  }

 private:
  const Facts &f_;
  Block<E> &b_;
  int64_t head_, most_;

  float weight(int64_t r, float score) const {
    const double below = (static_cast<double>(score) - static_cast<double>(b_.row[r].ref)) * static_cast<double>(f_.unit);
    return static_cast<float>(std::exp(below) * static_cast<double>(b_.row[r].scale));
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
