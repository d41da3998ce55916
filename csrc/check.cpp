#include "check.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace mh {
namespace {

constexpr int64_t MOST = int64_t{1} << 40;  // of any size, stride and offset: products of two do not overflow far below
constexpr int64_t MOST_DIM = 512;

struct Span {  // bytes [from, to)
  uintptr_t from, to;
};

bool fits(int64_t x, int64_t most) { return x >= 0 && x <= most; }

int64_t item_size(int32_t dtype) { return dtype == MH_F32 ? 4 : 2; }

// The bytes that a tensor covers; false where its numbers are beyond all bounds.
bool span_of(const void *data, const int64_t (&sizes)[4], const int64_t (&strides)[4], int64_t item, Span *span) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(data);
  int64_t last = 0;
  for (int i = 0; i < 4; i++) {
    if (sizes[i] == 0) {
      *span = {at, at};
      return true;
    }
    int64_t step;
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) || __builtin_add_overflow(last, step, &last)) return false;
  }
  int64_t bytes;
  if (__builtin_add_overflow(last, int64_t{1}, &bytes) || __builtin_mul_overflow(bytes, item, &bytes)) return false;
  *span = {at, at + static_cast<uintptr_t>(bytes)};
  return span->to >= span->from;
}

bool overlap(const Span &a, const Span &b) { return a.from < b.to && b.from < a.to && a.from < a.to && b.from < b.to; }

bool aligned(const void *p, int64_t item) { return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(item) == 0; }

struct Shape {
  int64_t sizes[4];
};

bool empty(const Shape &s) { return s.sizes[0] == 0 || s.sizes[1] == 0 || s.sizes[2] == 0 || s.sizes[3] == 0; }

int check_tensor(const mh_tensor &t, const Shape &shape, int64_t item, Span *span) {
  const int64_t strides[4] = {t.batch, t.head, t.row, 1};
  for (int64_t stride : strides)
    if (!fits(stride, MOST)) return MH_BAD_STRIDE;
  if (!span_of(t.data, shape.sizes, strides, item, span)) return MH_BAD_STRIDE;
  if (empty(shape)) return MH_OK;
  return t.data && aligned(t.data, item) ? MH_OK : MH_BAD_POINTER;
}

Shape q_shape(const mh_problem &p) { return {{p.batch, p.heads, p.q_len, p.head_dim}}; }
Shape k_shape(const mh_problem &p) { return {{p.batch, p.kv_heads, p.kv_len, p.head_dim}}; }
Shape v_shape(const mh_problem &p) { return {{p.batch, p.kv_heads, p.kv_len, p.v_head_dim}}; }
Shape out_shape(const mh_problem &p) { return {{p.batch, p.heads, p.q_len, p.v_head_dim}}; }

// Whether the product of sizes stays far below what an int64_t holds, so that bytes of it can be counted.
bool product_fits(int64_t a, int64_t b, int64_t c, int64_t d) {
  int64_t product = 1;
  for (int64_t size : {a, b, c, d})
    if (__builtin_mul_overflow(product, size > 1 ? size : 1, &product) || product > (int64_t{1} << 48)) return false;
  return true;
}

int check_sizes(const mh_problem &p) {
  if (!fits(p.batch, MOST) || !fits(p.heads, MOST) || !fits(p.kv_heads, MOST)) return MH_BAD_SIZE;
  if (!fits(p.q_len, MOST) || !fits(p.kv_len, MOST)) return MH_BAD_SIZE;
  if (!fits(p.head_dim, MOST_DIM) || !fits(p.v_head_dim, MOST_DIM)) return MH_BAD_SIZE;
  if (!product_fits(p.batch, p.heads, p.q_len, p.head_dim) || !product_fits(p.batch, p.heads, p.q_len, p.v_head_dim) ||
      !product_fits(p.batch, p.heads, p.kv_len, p.head_dim) || !product_fits(p.batch, p.heads, p.kv_len, p.v_head_dim))
    return MH_BAD_SIZE;
  if (p.heads > 0 && (p.kv_heads == 0 || p.heads % p.kv_heads != 0)) return MH_BAD_SIZE;
  if (p.threads < 1 || p.threads > 4096) return MH_BAD_SIZE;
  if (p.dtype != MH_F32 && p.dtype != MH_BF16 && p.dtype != MH_F16) return MH_BAD_DTYPE;
  return MH_OK;
}

int check_numbers(const mh_problem &p) {
  if (!std::isfinite(p.scale) || !std::isfinite(p.softcap) || p.softcap < 0.f) return MH_BAD_NUMBER;
  if (p.q_offset > MOST || p.q_offset < -MOST) return MH_BAD_NUMBER;
  return MH_OK;
}

int check_map(const mh_problem &p) {
  const mh_mask &m = p.mask;
  if (!m.tile_class) return m.tile_index || m.tile_bits || m.tile_count ? MH_BAD_MASK : MH_OK;
  if (m.q_tiles != (p.q_len + 63) / 64 || m.k_tiles != (p.kv_len + 63) / 64) return MH_BAD_MASK;
  if (!product_fits(p.batch, p.heads, m.q_tiles, m.k_tiles)) return MH_BAD_SIZE;
  if (!fits(m.tile_count, MOST) || (m.tile_count > 0 && !m.tile_bits)) return MH_BAD_MASK;
  if (!aligned(m.tile_bits, 8) || !aligned(m.tile_index, 4)) return MH_BAD_POINTER;
  const int64_t area = m.q_tiles * m.k_tiles;
  if ((m.tile_batch != 0 && m.tile_batch < area) || (m.tile_head != 0 && m.tile_head < area)) return MH_BAD_MASK;
  if (!fits(m.tile_batch, MOST) || !fits(m.tile_head, MOST)) return MH_BAD_MASK;
  const int64_t batches = m.tile_batch ? p.batch : 1, heads = m.tile_head ? p.heads : 1;
  for (int64_t b = 0; b < batches; b++) {
    for (int64_t h = 0; h < heads; h++) {
      const int64_t from = b * m.tile_batch + h * m.tile_head;
      for (int64_t t = from; t < from + area; t++) {
        if (m.tile_class[t] < 0 || m.tile_class[t] > 2) return MH_BAD_MASK;
        if (m.tile_class[t] != 1) continue;
        if (!m.tile_index || m.tile_index[t] < 0 || m.tile_index[t] >= m.tile_count) return MH_BAD_MASK;
      }
    }
  }
  return MH_OK;
}

int check_mask(const mh_problem &p) {
  const mh_mask &m = p.mask;
  const int64_t strides[] = {m.window_batch, m.window_head, m.q_ids_batch, m.k_ids_batch, m.keep_batch,
                             m.dense_batch,  m.dense_head,  m.dense_row,   m.dense_col};
  for (int64_t stride : strides)
    if (!fits(stride, MOST)) return MH_BAD_STRIDE;
  if (!m.q_ids != !m.k_ids) return MH_BAD_MASK;
  if (!aligned(m.window, 8) || !aligned(m.q_ids, 4) || !aligned(m.k_ids, 4)) return MH_BAD_POINTER;
  return check_map(p);
}

int check_bias(const mh_problem &p) {
  const mh_bias &b = p.bias;
  const int64_t strides[] = {b.dense_batch, b.dense_head, b.dense_row, b.dense_col};
  for (int64_t stride : strides)
    if (!fits(stride, MOST)) return MH_BAD_STRIDE;
  if (b.table && (b.table_len < 1 || b.table_len > MOST || b.table_first > MOST || b.table_first < -MOST)) return MH_BAD_SIZE;
  if (b.dense && b.dense_dtype != MH_F32 && b.dense_dtype != MH_BF16 && b.dense_dtype != MH_F16) return MH_BAD_DTYPE;
  if (!aligned(b.slopes, 4) || !aligned(b.table, 4) || !aligned(p.sinks, 4)) return MH_BAD_POINTER;
  return b.dense && !aligned(b.dense, item_size(b.dense_dtype)) ? MH_BAD_POINTER : MH_OK;
}

// Whether two elements of an output share memory: sorted by stride, each dimension must step over those below it.
bool overlaps_itself(const Shape &shape, const mh_tensor &t) {
  int64_t sizes[4] = {shape.sizes[3], shape.sizes[2], shape.sizes[1], shape.sizes[0]};
  int64_t strides[4] = {1, t.row, t.head, t.batch};
  for (int i = 1; i < 4; i++) {
    for (int j = i; j > 1 && strides[j] < strides[j - 1]; j--) {
      const int64_t size = sizes[j], stride = strides[j];
      sizes[j] = sizes[j - 1], strides[j] = strides[j - 1];
      sizes[j - 1] = size, strides[j - 1] = stride;
    }
  }
  int64_t covered = 1;
  for (int i = 0; i < 4; i++) {
    if (sizes[i] == 1) continue;
    if (strides[i] < covered) return true;
    covered = (sizes[i] - 1) * strides[i] + covered;
  }
  return false;
}

// Whether a span overlaps anything that the problem reads.
bool aliased(const mh_problem &p, const Span &span) {
  const int64_t item = item_size(p.dtype);
  const mh_tensor *tensors[] = {&p.q, &p.k, &p.v};
  const Shape shapes[] = {q_shape(p), k_shape(p), v_shape(p)};
  for (int i = 0; i < 3; i++) {
    Span other;
    if (check_tensor(*tensors[i], shapes[i], item, &other) != MH_OK || overlap(span, other)) return true;
  }
  const mh_mask &m = p.mask;
  const mh_bias &b = p.bias;
  const int64_t area = m.q_tiles * m.k_tiles, tile_strides[4] = {m.tile_batch, m.tile_head, 0, 1};
  const struct {
    const void *data;
    int64_t sizes[4], strides[4], item;
  } parts[] = {
      {m.window, {p.batch, p.heads, 1, 2}, {2 * m.window_batch, 2 * m.window_head, 0, 1}, 8},
      {m.q_ids, {p.batch, 1, 1, p.q_len}, {m.q_ids_batch, 0, 0, 1}, 4},
      {m.k_ids, {p.batch, 1, 1, p.kv_len}, {m.k_ids_batch, 0, 0, 1}, 4},
      {m.keep, {p.batch, 1, 1, p.kv_len}, {m.keep_batch, 0, 0, 1}, 1},
      {m.dense, {p.batch, p.heads, p.q_len, p.kv_len}, {m.dense_batch, m.dense_head, m.dense_row, m.dense_col}, 1},
      {m.tile_class, {p.batch, p.heads, 1, area}, {tile_strides[0], tile_strides[1], 0, 1}, 1},
      {m.tile_index, {p.batch, p.heads, 1, area}, {tile_strides[0], tile_strides[1], 0, 1}, 4},
      {m.tile_bits, {1, 1, m.tile_count, 64}, {0, 0, 64, 1}, 8},
      {b.slopes, {1, 1, 1, p.heads}, {0, 0, 0, 1}, 4},
      {b.table, {1, 1, p.heads, b.table_len}, {0, 0, b.table_len, 1}, 4},
      {b.dense, {p.batch, p.heads, p.q_len, p.kv_len}, {b.dense_batch, b.dense_head, b.dense_row, b.dense_col},
       item_size(b.dense_dtype)},
      {p.sinks, {1, 1, 1, p.heads}, {0, 0, 0, 1}, 4},
  };
  for (const auto &part : parts) {
    Span other;
    if (part.data && (!span_of(part.data, part.sizes, part.strides, part.item, &other) || overlap(span, other))) return true;
  }
  return false;
}

}  // namespace

int check_problem(const mh_problem *problem) {
  if (!problem) return MH_BAD_POINTER;
  if (problem->abi != MH_ABI) return MH_BAD_NUMBER;
  const mh_problem &p = *problem;
  if (int status = check_sizes(p)) return status;
  if (int status = check_numbers(p)) return status;
  Span span;
  const int64_t item = item_size(p.dtype);
  if (int status = check_tensor(p.q, q_shape(p), item, &span)) return status;
  if (int status = check_tensor(p.k, k_shape(p), item, &span)) return status;
  if (int status = check_tensor(p.v, v_shape(p), item, &span)) return status;
  if (int status = check_bias(p)) return status;
  return check_mask(p);
}

bool overlaps_inputs(const mh_problem &p, const void *from, int64_t bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(from);
  return aliased(p, {at, at + static_cast<uintptr_t>(bytes)});
}

int check_output(const mh_problem &p, const mh_tensor *out, const float *lse) {
  if (!out) return MH_BAD_POINTER;
  const Shape shape = out_shape(p);
  Span written, sums;
  if (int status = check_tensor(*out, shape, item_size(p.dtype), &written)) return status;
  if (!empty(shape) && overlaps_itself(shape, *out)) return MH_BAD_STRIDE;
  if (aliased(p, written)) return MH_ALIASED;
  if (!lse) return MH_OK;
  if (!aligned(lse, 4)) return MH_BAD_POINTER;
  const int64_t sizes[4] = {1, 1, 1, p.batch * p.heads * p.q_len}, strides[4] = {0, 0, 0, 1};
  if (!span_of(lse, sizes, strides, 4, &sums)) return MH_BAD_SIZE;
  return aliased(p, sums) || overlap(sums, written) ? MH_ALIASED : MH_OK;
}

}  // namespace mh
