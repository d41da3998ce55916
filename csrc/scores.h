// Scores of a block of rows and all keys of one head, tile by tile.
#pragma once

#include "links.h"
#include "spread.h"

namespace mh {
namespace MH_VARIANT {

template <class E, class T>
class Scores {
 public:
  Scores(const Facts &f, Block<E> &b, int64_t head)
      : f_(f), b_(b), head_(head), sight_(f.p, f.batch, head), adjust_(f.p, f.batch, head), spread_(f, b, head),
        links_(f, b, head) {}

  void run() {
    take_queries();
    find_reach();
    for (int64_t r = 0; r < b_.rows; r++) spread_.begin(r);
    links_.begin();
    for (int64_t index = 0; index < f_.panels; index++) {
      if (index < b_.from || index >= b_.to) {
        std::memset(&b_.kind(f_, head_, index, 0), 0, static_cast<size_t>(f_.tiles));
        continue;
      }
      const Panel panel = sight_.panel(index);
      for (int64_t tile = 0; tile < f_.tiles; tile++) through(panel, tile);
    }
    for (int64_t r = 0; r < b_.rows; r++) spread_.end(r);
    if (links_.asked()) links_.tell();
  }

 private:
  const Facts &f_;
  Block<E> &b_;
  int64_t head_;
  Sight sight_;
  Adjust adjust_;
  Spread<E> spread_;
  Links<E> links_;

  void take_queries() {
    const mh_tensor &q = f_.p.q;
    const T *from = static_cast<const T *>(q.data) + f_.batch * q.batch + head_ * q.head;
    T gathered[MR * 512];
    for (int64_t tile = 0; tile < f_.tiles; tile++) {
      const int64_t start = tile * MR, rows = at_least(0, at_most(MR, b_.rows - start));
      for (int64_t r = 0; r < rows; r++)
        std::memcpy(gathered + r * f_.p.head_dim, from + f_.query(b_.first + start + r) * q.row,
                    sizeof(T) * static_cast<size_t>(f_.p.head_dim));
      pack_queries<E>(gathered, f_.p.head_dim, rows, f_.p.head_dim, f_.scoring.sign, b_.q + start * f_.words);
    }
  }

  void find_reach() {
    int64_t low = f_.p.kv_len, high = 0;
    for (int64_t r = 0; r < b_.rows; r++) {
      int64_t first, last;
      sight_.reach(f_.query(b_.first + r), 1, &first, &last);
      low = at_most(low, first);
      high = at_least(high, last);
    }
    b_.from = low / PANEL;
    b_.to = high > low ? (high + PANEL - 1) / PANEL : b_.from;
  }

  // The class of a tile; `allowed` is filled in any case.
  Seen look(const Panel &panel, int64_t tile, int rows, uint64_t *allowed) {
    const int64_t start = b_.first + tile * MR;
    uint64_t words[MR];
    if (!f_.wanted.rows) {
      const Seen seen = sight_.look(panel, f_.query(start), rows, words);
      for (int r = 0; r < MR; r++) allowed[r] = seen == Seen::SOME ? words[r] : seen == Seen::ALL ? ~uint64_t{0} : 0;
      return seen;
    }
    uint64_t any = 0, every = ~uint64_t{0};
    for (int r = 0; r < rows; r++) {
      const Seen seen = sight_.look(panel, f_.query(start + r), 1, words);
      allowed[r] = seen == Seen::SOME ? words[0] : seen == Seen::ALL ? ~uint64_t{0} : 0;
      any |= allowed[r];
      every &= allowed[r];
    }
    for (int r = rows; r < MR; r++) allowed[r] = any;
    return any == 0 ? Seen::NOTHING : every == ~uint64_t{0} ? Seen::ALL : Seen::SOME;
  }

  void through(const Panel &panel, int64_t tile) {
    const int64_t start = tile * MR, index = panel.index;
    const int rows = static_cast<int>(at_least(0, at_most(MR, b_.rows - start)));
    uint64_t *allowed = b_.allowed + index * f_.block_rows + start;
    const Seen seen = rows == 0 ? Seen::NOTHING : look(panel, tile, rows, allowed);
    b_.kind(f_, head_, index, tile) = static_cast<uint8_t>(seen);
    if (seen == Seen::NOTHING) return;
    const int64_t kv_head = head_ / (f_.p.heads / f_.p.kv_heads);
    const auto *k = static_cast<const typename E::Word *>(f_.keys) + (kv_head * f_.panels + index) * f_.words * PANEL;
    const Ahead next = ahead(k + f_.words * PANEL, index, tile);
    vf most[MR];
    const uint64_t *hidden = seen == Seen::SOME ? allowed : nullptr;
    if (f_.plain) {
      score_tile<E, true>(f_.scoring, b_.q + start * f_.words, k, f_.words, b_.bias, hidden, b_.scores, most, next);
    } else {
      fill_bias(panel, start, rows);
      score_tile<E, false>(f_.scoring, b_.q + start * f_.words, k, f_.words, b_.bias, hidden, b_.scores, most, next);
    }
    spread_.add(index, start, rows, allowed, b_.scores, most);
    if (!links_.asked()) return;
    for (int r = 0; r < rows; r++) links_.take(index, start + r, allowed[r], b_.scores + r * PANEL, most[r]);
  }

  // The keys of the next panel come nearer while this one is at work, a part with each step of each tile.
  Ahead ahead(const typename E::Word *next, int64_t index, int64_t tile) const {
    if (index + 1 >= b_.to) return {reinterpret_cast<const char *>(next), 0};
    const int64_t bytes = f_.words * PANEL * static_cast<int64_t>(sizeof(*next)) / f_.tiles;
    const int64_t steps = f_.words * (PANEL / STRIP);
    return {reinterpret_cast<const char *>(next) + tile * bytes, bytes / steps};
  }

  void fill_bias(const Panel &panel, int64_t start, int rows) {
    if (!f_.wanted.rows) return adjust_.fill(panel, f_.query(b_.first + start), rows, b_.bias);
    float one[MR * PANEL];
    for (int r = 0; r < rows; r++) {
      adjust_.fill(panel, f_.query(b_.first + start + r), 1, one);
      std::memcpy(b_.bias + r * PANEL, one, sizeof(float) * PANEL);
    }
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
