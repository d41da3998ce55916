"""The Attention operator of ONNX (opsets 23 to 25) said in the words of this library."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from multihead.attend import attention_lse, explain_backend, make_problem
from multihead.pattern import band, causal, padding

RAW, CAPPED, BIASED, WEIGHTS = range(4)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call: what `attention` gets, and what is wanted of it besides the output."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    options: dict
    flat: bool
    mode: int

    def refusals(self, backend):
        """The reasons of the backend, or none."""
        explained = explain_backend(self.q, self.k, self.v, backend=backend, **self.options)
        return () if explained.chosen else next(v.reasons for v in explained.verdicts if v.backend == backend)

    def run(self, backend):
        """(Y, present_key, present_value, qk_matmul_output)."""
        attended = attention_lse(self.q, self.k, self.v, backend=backend, **self.options)
        out = attended.out.transpose(1, 2).flatten(2) if self.flat else attended.out
        return out, self.k, self.v, self._seen(attended)

    def _seen(self, attended):
        if self.mode == WEIGHTS:
            return attended.weights()
        if self.mode == BIASED:
            return attended.problem.scores()
        softcap = self.options["softcap"] if self.mode == CAPPED else None
        return make_problem(self.q, self.k, self.v, scale=self.options["scale"], softcap=softcap).scores()


def translate(  # the inputs and attributes of the operator, by their names
    Q,
    K,
    V,
    attn_mask=None,
    past_key=None,
    past_value=None,
    nonpad_kv_seqlen=None,
    *,
    scale=None,
    softcap=0.0,
    is_causal=0,
    q_num_heads=None,
    kv_num_heads=None,
    softmax_precision=None,  # sums are kept in float32 or wider whatever it is
    qk_matmul_output_mode=RAW,
    left_window_size=-1,
    right_window_size=-1,
):
    """The call that the operator stands for."""
    flat = Q.ndim == 3
    q, k, v = (
        x.unflatten(2, (heads, -1)).transpose(1, 2) if flat else x
        for x, heads in ((Q, q_num_heads), (K, kv_num_heads), (V, kv_num_heads))
    )
    if past_key is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    sizes = q.shape[2], k.shape[2]
    window = (left_window_size, right_window_size)
    patterns = _patterns(sizes, is_causal=is_causal, window=window)
    options = {"scale": scale, "softcap": softcap or None, "q_offset": 0 if past_key is None else past_key.shape[2]}
    mask = _joined(patterns)
    if nonpad_kv_seqlen is not None:
        mask = _of_lengths(nonpad_kv_seqlen, patterns, sizes)
        options["q_offset"] = None if isinstance(mask, torch.Tensor) else int(nonpad_kv_seqlen[0]) - sizes[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = _both(_four(attn_mask, sizes[1], False), mask, sizes, options["q_offset"])
    elif attn_mask is not None:
        options["bias"] = _four(attn_mask, sizes[1], -torch.inf)
    return Call(q=q, k=k, v=v, options=options | {"mask": mask}, flat=flat, mode=qk_matmul_output_mode)


def _patterns(sizes, *, is_causal, window):
    """Patterns of positions; a side of a window that is open reaches over everything there is."""
    patterns = [causal()] if is_causal else []
    if max(window) >= 0:
        farthest = 2 * sum(sizes)
        patterns.append(band(*(farthest if side < 0 else side for side in window)))
    return patterns


def _joined(patterns):
    joined = None
    for pattern in patterns:
        joined = pattern if joined is None else joined & pattern
    return joined


def _of_lengths(lengths, patterns, sizes):
    """Keys up to each sequence's length, its last query at its last key: sequences of several lengths need a tensor."""
    q_len, kv_len = sizes
    keep = padding(torch.arange(kv_len) < lengths[:, None])
    if len(set(lengths.tolist())) == 1 or not patterns:
        return _joined([*patterns, keep])
    rows = [_joined(patterns).mask(q_len, kv_len, q_offset=int(length) - q_len) for length in lengths]
    return torch.cat(rows) & keep.mask(q_len, kv_len)


def _four(given, kv_len, fill):
    """A mask of 1 to 4 dimensions as four, right-aligned, with the keys it says nothing of shut."""
    given = pad(given, (0, kv_len - given.shape[-1]), value=fill)
    return given[(None,) * (4 - given.ndim)]


def _both(tensor, mask, sizes, q_offset):
    if mask is None:
        return tensor
    return tensor & (mask if isinstance(mask, torch.Tensor) else mask.mask(*sizes, q_offset=q_offset or 0))
