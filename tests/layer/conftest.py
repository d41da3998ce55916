import math

import jaxtyping
import pytest
import torch


@pytest.fixture
def unhooked():
    """Outside of tests nothing checks the types of arguments: what a caller then gets to read is tested like this."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def randomise():
    """Weights and biases that are all random; their size keeps scores of the order of 1."""

    def fill(module):
        with torch.no_grad():
            for parameter in module.parameters():
                scale = 1.0 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
                parameter.copy_(torch.randn(parameter.shape) * scale)
        return module

    return fill


def one_row(query, keys, values, allowed, scale):
    """Softmax attention of one query over the keys it may see, key by key; zeros where it sees none."""
    seen = [j for j in range(len(keys)) if allowed[j]]
    if not seen:
        return torch.zeros_like(values[0])
    scores = [scale * (query * keys[j]).sum() for j in seen]
    top = max(float(score.detach()) for score in scores)
    exps = [torch.exp(score - top) for score in scores]
    total = sum(exps)
    return sum(weight / total * values[j] for weight, j in zip(exps, seen, strict=True))


@pytest.fixture
def concat_by_hand():
    """Concat(head_1..head_h) W_O in float64, head by head and row by row: (output, its weights as float64 leaves)."""

    def compute(layer, query, key, value, allowed):
        weights = {name: p.detach().double().requires_grad_() for name, p in layer.named_parameters()}
        query, key, value = query.double(), key.double(), value.double()

        def project(name, x, head, width):
            rows = slice(head * width, (head + 1) * width)
            out = x @ weights[f"{name}.weight"][rows].T
            return out + weights[f"{name}.bias"][rows] if f"{name}.bias" in weights else out

        batches = []
        for b in range(len(query)):
            heads = []
            for h in range(layer.heads):
                shared = math.floor(h * layer.kv_heads / layer.heads)
                q = project("q_proj", query[b], h, layer.head_dim)
                k = project("k_proj", key[b], shared, layer.head_dim)
                v = project("v_proj", value[b], shared, layer.head_dim)
                scale = 1 / math.sqrt(layer.head_dim)
                heads.append(torch.stack([one_row(q[i], k, v, allowed[b][h][i], scale) for i in range(len(q))]))
            joined = torch.cat(heads, dim=-1)
            out = joined @ weights["out_proj.weight"].T
            batches.append(out + weights["out_proj.bias"] if "out_proj.bias" in weights else out)
        return torch.stack(batches), weights

    return compute
