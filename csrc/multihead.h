/* The CPU kernel of multihead: a plain C interface, no Python, no torch.
 *
 *   out = softmax(mask(softcap(scale * q k^T) + bias)) v          lse = log sum exp of each row of scores
 *
 * Every entry checks what it is given and returns a code; nothing is read or written before all of it was checked. The
 * result is the same, bit for bit, for any number of threads. Rows without any key they may attend to give 0 and -inf.
 */
#ifndef MULTIHEAD_H
#define MULTIHEAD_H

#include <stdint.h>

#if defined(__GNUC__)
#define MH_API __attribute__((visibility("default")))
#else
#define MH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MH_ABI 1 /* changes with any struct below */

enum mh_dtype { MH_F32 = 0, MH_BF16 = 1, MH_F16 = 2 };

/* The machine code to run: each is the same source compiled for other instructions. */
enum mh_variant { MH_AUTO = 0, MH_AVX2 = 1, MH_AVX512 = 2, MH_AVX512_BF16 = 3, MH_NEON = 4 };

enum mh_status {
  MH_OK = 0,
  MH_BAD_SIZE,    /* a size is negative, too large, or does not divide */
  MH_BAD_DTYPE,   /* a dtype that is none of mh_dtype */
  MH_BAD_STRIDE,  /* a negative stride, or an output whose elements overlap */
  MH_BAD_POINTER, /* a null pointer where there is something to read or write, or one that is not aligned */
  MH_BAD_MASK,    /* a tile map, window or list of ids that contradicts itself or the sizes */
  MH_BAD_NUMBER,  /* scale, softcap or offset that is not finite or out of range */
  MH_ALIASED,     /* an output that overlaps another tensor */
  MH_NO_VARIANT,  /* the variant asked for was not compiled in, or this processor cannot run it */
  MH_NO_MEMORY,   /* no memory to work in; the outputs hold nothing of use */
};

/* Four dimensions; strides in elements, of batch, head and row; columns follow one another. */
typedef struct mh_tensor {
  void *data;
  int64_t batch, head, row;
} mh_tensor;

/* Which pairs take part: those that every part that is given allows. Query i has position q_offset + i, key j has j. */
typedef struct mh_mask {
  /* Bounds of query position - key position: pairs (low, high), INT64_MIN and INT64_MAX for none. */
  const int64_t *window;
  int64_t window_batch, window_head; /* strides in pairs, 0 where all are alike */
  /* Ids that must be equal: (q_len) and (kv_len) for each batch row. */
  const int32_t *q_ids, *k_ids;
  int64_t q_ids_batch, k_ids_batch;
  /* Keys that may be seen: (kv_len) for each batch row, 0 or 1. */
  const uint8_t *keep;
  int64_t keep_batch;
  /* Pairs that may be seen, 0 or 1; strides in bytes, 0 where all are alike. */
  const uint8_t *dense;
  int64_t dense_batch, dense_head, dense_row, dense_col;
  /* Tiles of 64 queries and 64 keys, counted from query 0 and key 0: class 0 nothing, 1 look into it, 2 everything. */
  const int8_t *tile_class;
  const int32_t *tile_index; /* for class 1 its place among tile_bits */
  const uint64_t *tile_bits; /* (tiles, 64): bit c of word r is pair (r, c) */
  int64_t tile_batch, tile_head; /* strides in tiles, 0 where all are alike; within, (q_tiles, k_tiles) */
  int64_t q_tiles, k_tiles, tile_count;
} mh_mask;

/* What is added to the scores: the sum of the parts that are given. */
typedef struct mh_bias {
  /* -slopes[head] * |query position - key position| */
  const float *slopes;
  /* table[head][clamp(query position - key position - table_first, 0, table_len - 1)] */
  const float *table;
  int64_t table_first, table_len;
  /* Any numbers; strides in elements, 0 where all are alike. */
  const void *dense;
  int32_t dense_dtype, reserved;
  int64_t dense_batch, dense_head, dense_row, dense_col;
} mh_bias;

typedef struct mh_problem {
  int32_t abi;     /* MH_ABI */
  int32_t dtype;   /* of q, k, v and the output */
  int32_t variant; /* MH_AUTO, or one to run */
  int32_t threads; /* at least 1 */
  int64_t batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim;
  mh_tensor q, k, v;
  float scale, softcap; /* softcap 0: none */
  int64_t q_offset;
  mh_mask mask;
  mh_bias bias;
  const float *sinks; /* (heads) logits that take up weight and give nothing, or NULL */
} mh_problem;

/* Output (batch, heads, q_len, v_head_dim), and lse (batch, heads, q_len) float32, contiguous, or NULL. */
MH_API int mh_forward(const mh_problem *problem, const mh_tensor *out, float *lse);

/* The variants that are compiled in and that this processor can run: bit 1 << variant. */
MH_API int mh_variants(void);
/* What MH_AUTO stands for here. */
MH_API int mh_best_variant(void);
/* 1 where the processor has tiles of bfloat16 (AMX), which PyTorch's kernels use and this one does not. */
MH_API int mh_has_amx(void);
/* 1 where the processor is Intel's, to which MKL, and so PyTorch, gives all instructions that it has. */
MH_API int mh_is_intel(void);
/* 1 where more than one thread is possible. */
MH_API int mh_has_threads(void);
MH_API const char *mh_variant_name(int variant);
MH_API const char *mh_status_text(int status);
MH_API int mh_abi(void);

#ifdef __cplusplus
}
#endif
#endif
