"""Drop-ins: other libraries' attention by their own signatures, on our kernels."""

from multihead.interop.compat.dot_product import scaled_dot_product_attention
from multihead.interop.compat.flash import flash_attn_func
from multihead.interop.compat.flash_ragged import flash_attn_varlen_func, flash_attn_with_kvcache
from multihead.interop.compat.forward import multi_head_attention_forward
from multihead.interop.compat.module import MultiheadAttention

__all__ = [
    "MultiheadAttention",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "multi_head_attention_forward",
    "scaled_dot_product_attention",
]
