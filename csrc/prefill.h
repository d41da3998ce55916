// The tasks of a forward pass: each takes a block of queries of all heads that share keys and goes through the panels.
#pragma once

#include "forward.h"

namespace mh {
namespace MH_VARIANT {

// How a call is cut into tasks. It depends on the sizes alone: so do the order of additions and the result.
struct Cut {
  int64_t group, rows, blocks, tiles;  // heads that share keys; queries of a block (a multiple of MR); tiles of a task

  explicit Cut(const mh_problem &p, int64_t width) {
    constexpr int64_t STATE = 384 * 1024, MOST_TILES = 128, ENOUGH = 16;
    group = p.heads / p.kv_heads;
    int64_t most = at_least(1, at_most(MOST_TILES, STATE / (static_cast<int64_t>(sizeof(float)) * MR * at_least(width, W))));
    int64_t per_head = at_least(1, most / group);
    const int64_t all = round_up(p.q_len, MR) / MR, pairs = p.batch * p.kv_heads;
    const int64_t wanted = (ENOUGH + pairs - 1) / pairs;  // blocks, so that there is work for several threads
    per_head = at_most(per_head, at_least(at_least(1, 8 / group), (all + wanted - 1) / wanted));
    rows = per_head * MR;
    blocks = (p.q_len + rows - 1) / rows;
    tiles = group * per_head;
  }
};

template <class E>
struct Room {
  using Word = typename E::Word;
  Word *k, *v, *q, *strange;
  float *out, *limit, *shift, *bias;
  vf *sum, *rounded;
  size_t bytes;

  Room(char *from, const Cut &cut, int64_t words, int64_t width) {
    Cutter cutter(from);
    k = cutter.take<Word>(PANEL * words);
    v = cutter.take<Word>(PANEL / E::PER_WORD * width);
    q = cutter.take<Word>(cut.tiles * MR * words);
    strange = cutter.take<Word>(words_to_mix_seen<E>(width));
    out = cutter.take<float>(cut.tiles * MR * width);
    limit = cutter.take<float>(cut.tiles * MR);
    shift = cutter.take<float>(cut.tiles * MR);
    bias = cutter.take<float>(MR * PANEL);
    sum = cutter.take<vf>(cut.tiles * MR);
    rounded = cutter.take<vf>(cut.tiles * MR);
    bytes = cutter.used();
  }
};

template <class E, class T>
class Task {
 public:
  using Word = typename E::Word;

  Task(const mh_problem &p, const mh_tensor &out, float *lse, const Cut &cut, const Scoring &scoring, int64_t task,
       char *scratch)
      : p_(p), out_(out), lse_(lse), cut_(cut), scoring_(scoring), words_(words_of<E>(p.head_dim)),
        width_(round_up(p.v_head_dim, W)), room_(scratch, cut, words_, width_) {
    // The last block of a causal mask has the most keys: it goes first, so that threads end together.
    const int64_t block = cut.blocks - 1 - task % cut.blocks, pair = task / cut.blocks;
    batch_ = pair / p.kv_heads;
    kv_head_ = pair % p.kv_heads;
    first_ = block * cut.rows;
    rows_ = at_most(cut.rows, p.q_len - first_);
  }

  void run() {
    start();
    int64_t from = p_.kv_len, to = 0;
    for (int64_t g = 0; g < cut_.group; g++) {
      int64_t first, last;
      Sight(p_, batch_, head(g)).reach(first_, rows_, &first, &last);
      from = at_most(from, first);
      to = at_least(to, last);
    }
    for (int64_t index = from / PANEL; index * PANEL < to; index++) through(index);
    for (int64_t g = 0; g < cut_.group; g++) {
      for (int64_t i = 0; i < rows_; i++) finish(g, i);
    }
  }

 private:
  const mh_problem &p_;
  const mh_tensor &out_;
  float *lse_;
  const Cut &cut_;
  const Scoring &scoring_;
  int64_t words_, width_;
  Room<E> room_;
  int64_t batch_, kv_head_, first_, rows_;

  int64_t head(int64_t g) const { return kv_head_ * cut_.group + g; }
  int64_t tile(int64_t g, int64_t i) const { return g * (cut_.rows / MR) + i / MR; }

  void start() {
    for (int64_t g = 0; g < cut_.group; g++) {
      const T *q = static_cast<const T *>(p_.q.data) + batch_ * p_.q.batch + head(g) * p_.q.head + first_ * p_.q.row;
      for (int64_t i = 0; i < rows_; i += MR)
        pack_queries<E>(q + i * p_.q.row, p_.q.row, at_most(MR, rows_ - i), p_.head_dim, scoring_.sign,
                        room_.q + tile(g, i) * MR * words_);
    }
    const int64_t lines = cut_.tiles * MR;
    std::memset(room_.out, 0, sizeof(float) * static_cast<size_t>(lines * width_));
    for (int64_t i = 0; i < lines; i++) {
      room_.limit[i] = room_.shift[i] = -INF;
      room_.sum[i] = room_.rounded[i] = vf{};
    }
  }

  void through(int64_t index) {
    bool packed = false, strange = false;
    for (int64_t g = 0; g < cut_.group; g++) {
      const Sight sight(p_, batch_, head(g));
      const Panel panel = sight.panel(index);
      const Adjust adjust(p_, batch_, head(g));
      for (int64_t i = 0; i < rows_; i += MR) {
        const int rows = static_cast<int>(at_most(MR, rows_ - i));
        uint64_t allowed[MR];
        const Seen seen = sight.look(panel, first_ + i, rows, allowed);
        if (seen == Seen::NOTHING) continue;
        if (!packed) strange = pack(panel);
        packed = true;
        step(tile(g, i), seen == Seen::SOME ? allowed : nullptr, strange, [&](float *bias) {
          adjust.fill(panel, first_ + i, rows, bias);
        });
      }
    }
  }

  bool pack(const Panel &panel) {
    const T *k = static_cast<const T *>(p_.k.data) + batch_ * p_.k.batch + kv_head_ * p_.k.head + panel.first * p_.k.row;
    const T *v = static_cast<const T *>(p_.v.data) + batch_ * p_.v.batch + kv_head_ * p_.v.head + panel.first * p_.v.row;
    pack_keys<E>(k, p_.k.row, panel.keys, p_.head_dim, room_.k);
    return pack_values<E>(v, p_.v.row, panel.keys, p_.v_head_dim, room_.v);
  }

  template <class Fill>
  void step(int64_t at, const uint64_t *allowed, bool strange, const Fill &fill) {
    uint64_t any = ~uint64_t{0}, words[MR];
    if (!scoring_.plain) fill(room_.bias);
    if (p_.bias.dense) allowed = without_shut(allowed, words);
    if (allowed) {
      any = 0;
      for (int r = 0; r < MR; r++) any |= allowed[r];
      if (any == 0) return;
    }
    const Tile<E> tile{room_.q + at * MR * words_, room_.k, room_.v, words_, width_, allowed, room_.bias,
                       __builtin_ctzll(any) & ~15, PANEL - __builtin_clzll(any)};
    Rows rows{room_.limit + at * MR, room_.shift + at * MR, room_.sum + at * MR, room_.rounded + at * MR,
              room_.out + at * MR * width_};
    Word *apart = strange && allowed ? room_.strange : nullptr;
    if (scoring_.plain) attend_tile<E, true>(tile, scoring_, rows, apart);
    else attend_tile<E, false>(tile, scoring_, rows, apart);
  }

  // The words without the keys that a bias of -inf shuts: like any key that may not be seen they are not looked at, whatever
  // they and their values hold.
  const uint64_t *without_shut(const uint64_t *allowed, uint64_t *words) const {
    uint64_t every = ~uint64_t{0};
    for (int r = 0; r < MR; r++) {
      words[r] = (allowed ? allowed[r] : ~uint64_t{0}) & ~shut_by(room_.bias + r * PANEL);
      every &= words[r];
    }
    return every == ~uint64_t{0} ? nullptr : words;
  }

  void finish(int64_t g, int64_t i) {
    const int64_t at = tile(g, i) * MR + i % MR, row = first_ + i;
    const float *held = room_.out + at * width_;
    T *out = static_cast<T *>(out_.data) + batch_ * out_.batch + head(g) * out_.head + row * out_.row;
    const float sum = sum_lanes(room_.sum[at]);
    const float over = std::is_same_v<E, Pairs> ? sum_lanes(room_.rounded[at]) : sum;
    const Settled settled = settle(sum, over, scoring_.natural(room_.shift[at]), p_.sinks ? &p_.sinks[head(g)] : nullptr);
    write_row(held, settled.factor, p_.v_head_dim, out);
    if (lse_) lse_[(batch_ * p_.heads + head(g)) * p_.q_len + row] = settled.lse;
  }
};

template <class E, class T>
int prefill(const mh_problem &p, const mh_tensor &out, float *lse) {
  const int64_t words = words_of<E>(p.head_dim), width = round_up(p.v_head_dim, W);
  const Cut cut(p, width);
  const Scoring scoring(p);
  const size_t bytes = Room<E>(nullptr, cut, words, width).bytes;
  return run_tasks(p.batch * p.kv_heads * cut.blocks, p.threads, bytes, [&](int64_t task, char *scratch) {
    Task<E, T>(p, out, lse, cut, scoring, task, scratch).run();
  });
}

}  // namespace MH_VARIANT
}  // namespace mh
