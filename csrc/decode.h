// Attention of few queries, as when text is written a token at a time: keys and values are read where they lie, once,
// and the time is that of reading them. The keys are split into chunks, each a task, and the parts are joined at the
// end through their sums (the same arithmetic as joining any disjoint sets of keys).
#pragma once

#include <new>

#include "parallel.h"
#include "score.h"
#include "settle.h"

namespace mh {
namespace MH_VARIANT {

constexpr int64_t FEW_ROWS = 8;         // queries that share keys, heads times positions, up to which this is faster
constexpr int64_t CHUNK = 16 * PANEL;   // keys of a task

MH_INLINE bool has_few_rows(const mh_problem &p) { return p.heads / p.kv_heads * p.q_len <= FEW_ROWS; }

// Lane l of the result is the sum of the lanes of r[l]; r is used up.
template <int S>
MH_INLINE vf sums_of_lanes(vf *r) {
  each<S>([&](auto i) __attribute__((always_inline)) {
    swap_blocks<S>(r[i], r[i + S], std::make_integer_sequence<int, W>{});
    r[i] = r[i] + r[i + S];
  });
  if constexpr (S > 1) return sums_of_lanes<S / 2>(r);
  else return r[0];
}

// One query as the products want it: float32, or pairs of bfloat16 where the processor multiplies those.
template <class T>
struct Query {
  static constexpr bool PAIRS = HAS_PAIRS && std::is_same_v<T, bf16>;
  static constexpr int STEP = PAIRS ? 2 * W : W;

  static MH_INLINE vf read(const T *from, int64_t count) {  // `count` numbers at most, 0 behind them
    if constexpr (PAIRS) {
      if (count >= STEP) return load(reinterpret_cast<const float *>(from));
      float lane[W] = {};
      std::memcpy(lane, from, sizeof(T) * static_cast<size_t>(count));
      return load(lane);
    } else {
      return count >= W ? load(from) : load_some(from, static_cast<int>(count));
    }
  }
  static MH_INLINE vf add_product(vf a, vf b, vf sum) {
#if defined(__AVX512BF16__)
    if constexpr (PAIRS) return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#endif
    return fma(a, b, sum);
  }
};

// Products of one query with the keys of a panel.
template <class T>
inline void products(const vf *q, const T *k, int64_t stride, int64_t keys, int64_t size, float *scores) {
  using Q = Query<T>;
  const int64_t whole = size / Q::STEP;
  for (int64_t j = 0; j < PANEL; j += W) {
    if (j >= keys) {
      store(scores + j, vf{});
      continue;
    }
    vf sum[W];
    const int64_t last = keys - 1;
    each<W>([&](auto t) __attribute__((always_inline)) {
      const T *key = k + at_most(j + t, last) * stride;
      vf s = {};
      for (int64_t d = 0; d < whole; d++) s = Q::add_product(Q::read(key + d * Q::STEP, Q::STEP), q[d], s);
      if (whole * Q::STEP < size)
        s = Q::add_product(Q::read(key + whole * Q::STEP, size - whole * Q::STEP), q[whole], s);
      sum[t] = s;
    });
    store(scores + j, sums_of_lanes<W / 2>(sum));
  }
}

// Four vectors of values of one key. Of bfloat16 the even and the odd numbers of a word are told apart by a shift and a
// mask, which is cheaper than to widen them in order: what they are added to is kept in that order meanwhile.
template <class T>
struct Values {
  static constexpr bool PARTED = std::is_same_v<T, bf16>;

  static MH_INLINE void begin(vf (&acc)[4]) {
    if constexpr (PARTED) {
      part_lanes(acc[0], acc[1], std::make_integer_sequence<int, W>{});
      part_lanes(acc[2], acc[3], std::make_integer_sequence<int, W>{});
    }
  }
  static MH_INLINE void end(vf (&acc)[4]) {
    if constexpr (PARTED) {
      join_lanes(acc[0], acc[1], std::make_integer_sequence<int, W>{});
      join_lanes(acc[2], acc[3], std::make_integer_sequence<int, W>{});
    }
  }
  static MH_INLINE void add(vf p, const T *line, vf (&acc)[4]) {
    if constexpr (PARTED) {
      const vu first = (vu)load(reinterpret_cast<const float *>(line));
      const vu second = (vu)load(reinterpret_cast<const float *>(line + 2 * W));
      acc[0] = fma(p, (vf)(first << 16), acc[0]);
      acc[1] = fma(p, (vf)(first & 0xffff0000u), acc[1]);
      acc[2] = fma(p, (vf)(second << 16), acc[2]);
      acc[3] = fma(p, (vf)(second & 0xffff0000u), acc[3]);
    } else {
      each<4>([&](auto i) __attribute__((always_inline)) { acc[i] = fma(p, load(line + i * W), acc[i]); });
    }
  }
};

// out[c] = out[c] * grow + sum over keys of weight times value; keys that may not be seen are not read.
template <class T>
inline void mix_row(const float *weights, uint64_t seen, float grow, const T *v, int64_t stride, int64_t size, float *out) {
  int64_t c = 0;
  for (; c + 4 * W <= size; c += 4 * W) {
    vf acc[4];
    each<4>([&](auto i) __attribute__((always_inline)) { acc[i] = load(out + c + i * W) * grow; });
    Values<T>::begin(acc);
    if (seen == ~uint64_t{0}) {
#pragma GCC unroll 4
      for (int64_t j = 0; j < PANEL; j++) Values<T>::add(splat(weights[j]), v + j * stride + c, acc);
    } else {
      for (uint64_t word = seen; word; word &= word - 1) {
        const int64_t j = __builtin_ctzll(word);
        Values<T>::add(splat(weights[j]), v + j * stride + c, acc);
      }
    }
    Values<T>::end(acc);
    each<4>([&](auto i) __attribute__((always_inline)) { store(out + c + i * W, acc[i]); });
  }
  for (; c < size; c += W) {
    const int some = static_cast<int>(at_most(size - c, W));
    vf acc = load(out + c) * grow;
    for (uint64_t word = seen; word; word &= word - 1) {
      const int64_t j = __builtin_ctzll(word);
      const T *line = v + j * stride + c;
      acc = fma(splat(weights[j]), some == W ? load(line) : load_some(line, some), acc);
    }
    store(out + c, acc);
  }
}

// What a chunk of keys leaves of a row.
struct Part {
  float shift, sum;
};

template <class T>
class Chunk {
 public:
  Chunk(const mh_problem &p, const Scoring &scoring, char *scratch)
      : p_(p), scoring_(scoring), steps_((p.head_dim + Query<T>::STEP - 1) / Query<T>::STEP) {
    Cutter cutter(scratch);
    q_ = cutter.take<vf>(FEW_ROWS * steps_);
    bias_ = cutter.take<float>(MR * PANEL);
    scores_ = cutter.take<float>(PANEL);
    bytes_ = cutter.used();
  }
  size_t bytes() const { return bytes_; }

  // Parts and outputs (rows, width) of the queries that share keys, head by head.
  void run(int64_t batch, int64_t kv_head, int64_t from, int64_t to, Part *parts, float *out, int64_t width) {
    const int64_t group = p_.heads / p_.kv_heads, rows = group * p_.q_len;
    for (int64_t r = 0; r < rows; r++) {
      read_query(batch, kv_head * group + r / p_.q_len, r % p_.q_len, q_ + r * steps_);
      parts[r] = {-INF, 0.f};
    }
    std::memset(out, 0, sizeof(float) * static_cast<size_t>(rows * width));
    const T *k = static_cast<const T *>(p_.k.data) + batch * p_.k.batch + kv_head * p_.k.head;
    const T *v = static_cast<const T *>(p_.v.data) + batch * p_.v.batch + kv_head * p_.v.head;
    for (int64_t index = from / PANEL; index * PANEL < to; index++) {
      for (int64_t r = 0; r < rows; r++) {
        const int64_t head = kv_head * group + r / p_.q_len, row = r % p_.q_len;
        const Sight sight(p_, batch, head);
        const Panel panel = sight.panel(index);
        uint64_t words[MR];
        const Seen seen = sight.look(panel, row, 1, words);
        if (seen == Seen::NOTHING) continue;
        products(q_ + r * steps_, k + panel.first * p_.k.row, p_.k.row, panel.keys, p_.head_dim, scores_);
        if (!scoring_.plain) finish(panel, batch, head, row);
        add(seen == Seen::ALL ? ~uint64_t{0} : words[0], v + panel.first * p_.v.row, &parts[r], out + r * width);
      }
    }
  }

 private:
  const mh_problem &p_;
  const Scoring &scoring_;
  int64_t steps_;
  vf *q_;
  float *bias_, *scores_;
  size_t bytes_;

  void read_query(int64_t batch, int64_t head, int64_t row, vf *q) const {
    const T *from = static_cast<const T *>(p_.q.data) + batch * p_.q.batch + head * p_.q.head + row * p_.q.row;
    for (int64_t d = 0; d < steps_; d++) q[d] = Query<T>::read(from + d * Query<T>::STEP, p_.head_dim - d * Query<T>::STEP);
  }

  void finish(const Panel &panel, int64_t batch, int64_t head, int64_t row) {
    Adjust(p_, batch, head).fill(panel, row, 1, bias_);
    for (int c = 0; c < PANEL; c += W) {
      vf s = load(scores_ + c) * (scoring_.scale * scoring_.sign);
      if (scoring_.softcap > 0.f) s = scoring_.softcap * tanhv(s * scoring_.inverse_cap);
      store(scores_ + c, s + load(bias_ + c));
    }
  }

  // Scores become weights; then the values are added.
  void add(uint64_t seen, const T *v, Part *part, float *out) {
    const float by = scoring_.plain ? scoring_.to_log2 * scoring_.sign : scoring_.to_log2;
    vf top = splat(-INF), sum = {};
    for (int c = 0; c < PANEL; c += W) {
      const vf s = pick(static_cast<uint32_t>(seen >> c), load(scores_ + c) * by, splat(-INF));
      store(scores_ + c, s);
      top = vmax(s, top);
    }
    const float before = part->shift, most = max_lane(top), after = most > before ? most : before;
    const float grow = before == -INF ? 0.f : std::exp2(before - after);
    const vf shift = splat(after == -INF ? 0.f : after);
    for (int c = 0; c < PANEL; c += W) {
      const vf e = exp2v<true>(load(scores_ + c) - shift);
      store(scores_ + c, e);
      sum += e;
    }
    part->shift = after;
    part->sum = part->sum * grow + sum_lanes(sum);
    mix_row(scores_, seen, grow, v, p_.v.row, p_.v_head_dim, out);
  }
};

// Joins the parts of one row: `stride` floats and parts lie between one chunk and the next.
inline void join(int64_t chunks, int64_t part_stride, int64_t out_stride, Part *parts, float *out, int64_t width) {
  float shift = -INF;
  for (int64_t n = 0; n < chunks; n++) {
    const float other = parts[n * part_stride].shift;
    shift = other > shift ? other : shift;
  }
  float sum = 0.f;
  for (int64_t n = 0; n < chunks; n++) {
    const Part part = parts[n * part_stride];
    const float factor = part.sum == 0.f ? 0.f : std::exp2(part.shift - shift);
    sum += part.sum * factor;
    float *from = out + n * out_stride;
    for (int64_t c = 0; c < width; c += W) {
      const vf x = factor == 0.f ? vf{} : load(from + c) * factor;
      store(out + c, n == 0 ? x : load(out + c) + x);
    }
  }
  parts[0] = {shift, sum};
}

template <class T>
int decode(const mh_problem &p, const mh_tensor &out, float *lse) {
  const Scoring scoring(p);
  const int64_t width = round_up(p.v_head_dim, W), pairs = p.batch * p.kv_heads, group = p.heads / p.kv_heads;
  const int64_t rows = group * p.q_len, chunks = at_least(1, (p.kv_len + CHUNK - 1) / CHUNK);
  Cutter sizes(nullptr);
  sizes.take<Part>(chunks * pairs * rows);
  sizes.take<float>(chunks * pairs * rows * width);
  const Scratch held(sizes.used());
  if (!held) return MH_NO_MEMORY;
  Cutter cutter(held.data());
  Part *parts = cutter.take<Part>(chunks * pairs * rows);
  float *sums = cutter.take<float>(chunks * pairs * rows * width);
  const int status = run_tasks(pairs * chunks, p.threads, Chunk<T>(p, scoring, nullptr).bytes(),
                               [&](int64_t task, char *scratch) {
    const int64_t pair = task / chunks, chunk = task % chunks;
    Chunk<T>(p, scoring, scratch).run(pair / p.kv_heads, pair % p.kv_heads, chunk * CHUNK,
                                      at_most(p.kv_len, (chunk + 1) * CHUNK), parts + task * rows,
                                      sums + task * rows * width, width);
  });
  if (status != MH_OK) return status;
  for (int64_t at = 0; at < pairs * rows; at++) {
    const int64_t pair = at / rows, r = at % rows, first = pair * chunks * rows + r;
    if (chunks > 1) join(chunks, rows, rows * width, parts + first, sums + first * width, width);
    const int64_t batch = pair / p.kv_heads, head = pair % p.kv_heads * group + r / p.q_len, row = r % p.q_len;
    const Part part = parts[first];
    const Settled settled = settle(part.sum, part.sum, part.shift, p.sinks ? &p.sinks[head] : nullptr);
    write_row(sums + first * width, settled.factor, p.v_head_dim,
              static_cast<T *>(out.data) + batch * out.batch + head * out.head + row * out.row);
    if (lse) lse[(batch * p.heads + head) * p.q_len + row] = settled.lse;
  }
  return MH_OK;
}

}  // namespace MH_VARIANT
}  // namespace mh
