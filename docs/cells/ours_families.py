# ruff: noqa: D103 - a row's title says what its cell does
"""This library: the other kinds of attention."""

import torch
from torch.nn.functional import normalize

import multihead as mh
from cells import law_families as law
from cells.law import HEAD_DIM, HEADS, WIDTH, claim, note

CAUSAL = mh.causal()


def filled(module, s, **weights):
    """A module with the setting's projections, or their first rows, and others that are named."""
    given = {f"{name}_proj.weight": s.weights[name] for name in ("q", "k", "v", "out")} | {
        name.replace("__", "."): weight for name, weight in weights.items()
    }
    state = module.state_dict()
    for name, weight in given.items():
        if name in state:
            state[name] = weight[tuple(map(slice, state[name].shape))]
    module.load_state_dict(state)
    return module.eval()


def linear(s):
    phi = mh.EluPlusOne()
    return mh.linear_attention(phi.queries(s.q), phi.keys(s.k), s.v).out


def retention(s):
    return mh.linear_attention(s.q, s.k, s.v, log_decay=s.decay[0, :, 0, 0], normalise=False).out


def gated_linear(s):
    return mh.linear_attention(s.q, s.k, s.v, log_decay=s.decay, normalise=False).out


def written(s, decay, part=slice(None), state=None):
    q, k, v, beta, logs = (x[:, :, part] for x in (s.q, s.k, s.v, s.beta, decay))
    return mh.delta_rule(q * HEAD_DIM**-0.5, normalize(k, dim=-1), v, beta, log_decay=logs, state=state)


def gated_delta(s):
    return written(s, s.decay[..., 0]).out


def gated_delta_steps(s):
    state, found = None, []
    for t in range(s.q.shape[2]):
        made = written(s, s.decay[..., 0], slice(t, t + 1), state)
        state = made.state
        found.append(made.out)
    return torch.cat(found, 2)


def channel_delta(s):
    return written(s, s.decay).out


def top_keys(s):
    chosen = mh.TopKeys(law.KEYS).select(s.q, s.k, mask=CAUSAL)
    return mh.attention(s.q, s.k, s.v, mask=CAUSAL & chosen)


def top_blocks(s):
    chosen = mh.TopBlocks(law.BLOCK, law.BUDGET).select(s.q, s.k, mask=CAUSAL)
    return mh.attention(s.q, s.k, s.v, mask=CAUSAL & chosen)


def native_sparse(s):
    group = mh.HeadGroup(HEADS, kv_heads=2)
    made = mh.NativeSparseAttention(WIDTH, group, branches=mh.Branches(**law.NSA), bias=False)
    return filled(made, s, gate_proj__weight=s.spare[0])(s.long)


def indexed(s):
    latent = mh.Latent(8, nope_dim=4, rope_dim=4, v_dim=8, q_rank=law.RANK)
    index = mh.Index(law.INDEX_BUDGET, heads=law.INDEX_HEADS, head_dim=8)
    made = mh.IndexedAttention(WIDTH, HEADS, latent, index, position=mh.Rotary(layout="interleaved"))
    weights = {
        "q_down.weight": s.spare[0],
        "q_up.weight": s.weights["q"],
        "kv_down.weight": s.weights["k"],
        "kv_norm.weight": s.norms[0],
        "kv_up.weight": torch.cat([s.weights["v"], s.weights["k"][12:28]]),
        "index_q.weight": law.taken(s, 4, 8 * law.INDEX_HEADS, law.RANK),
        "index_k.weight": s.spare[2],
        "index_weights.weight": s.spare[3],
    }
    return filled(made, s, **weights)(s.x, mask=CAUSAL)


def hashed(s, cut):
    buckets = mh.Buckets(law.BUCKETS, rounds=1, chunk=law.CHUNK, cut=cut, seed=law.HASH_SEED)
    made = mh.LSHAttention(WIDTH, HEADS, buckets, bias=False)
    return filled(made, s, qk_proj__weight=s.weights["q"], out_proj__weight=torch.eye(WIDTH))


@note('`cut="sorted"`')
def lsh(s):
    return hashed(s, "sorted")(s.x, mask=CAUSAL)


@note('`cut="bucket"`, the default')
def lsh_causal(s):
    made = hashed(s, "bucket")
    for length in range(1, s.x.shape[1]):
        later = torch.cat([s.x[:, :length], s.x[:, length:].flip(0) * 2], 1)
        same = torch.equal(made(s.x, mask=CAUSAL)[:, :length], made(later, mask=CAUSAL)[:, :length])
        claim(same, "earlier tokens change with later ones")
    return ()


def mixture_of_heads(s):
    made = mh.MoHAttention(WIDTH, HEADS, shared=law.SHARED, chosen=law.CHOSEN, bias=False)
    weights = {"router.weight": s.spare[0], "shared_gate.weight": s.spare[1], "balance.weight": s.spare[2]}
    return filled(made, s, **weights)(s.x, mask=CAUSAL)


def switch_head(s):
    made = mh.SwitchHeadAttention(WIDTH, mh.HeadGroup(2, 8), experts=law.EXPERTS, chosen=law.CHOSEN)
    weights = {
        "v_router.weight": s.spare[0],
        "out_router.weight": s.spare[1],
        "v_experts": law.taken(s, 2, 2 * law.EXPERTS, 8, WIDTH),
        "out_experts": law.taken(s, 4, 2 * law.EXPERTS, WIDTH, 8),
    }
    return filled(made, s, **weights)(s.x, mask=CAUSAL)


def mixture_of_attention(s):
    made = mh.MoAAttention(WIDTH, mh.HeadGroup(2, 8), experts=law.EXPERTS, chosen=law.CHOSEN)
    weights = {
        "router.weight": s.spare[0],
        "bias": s.spare[1, 0],
        "q_experts": law.taken(s, 2, law.EXPERTS, 16, WIDTH),
        "out_experts": law.taken(s, 4, law.EXPERTS, WIDTH, 16),
    }
    return filled(made, s, **weights)(s.x, mask=CAUSAL)


def load_loss(s):
    made = mh.MoAAttention(WIDTH, mh.HeadGroup(2, 8), experts=law.EXPERTS, chosen=law.CHOSEN)
    filled(made, s, router__weight=s.spare[0])(s.x)
    return made.router.load_loss()


def resampler(s):
    made = mh.PerceiverResampler(WIDTH, HEADS, latents=law.LATENTS, depth=1, activation="relu")
    weights = {f"layers.0.attention.{name}_proj.weight": weight for name, weight in s.weights.items()}
    weights |= {"latents": s.spare[0], "layers.0.ffn.up.weight": law.taken(s, 0, 4 * WIDTH, WIDTH)}
    return filled(made, s, **weights, layers__0__ffn__down__weight=law.taken(s, 4, WIDTH, 4 * WIDTH))(s.x)


def gated_cross(s):
    made = mh.GatedCrossAttention(WIDTH, HEADS)
    weights = {f"attention.{name}_proj.weight": weight for name, weight in s.weights.items()}
    weights |= {
        "ffn.up.weight": law.taken(s, 0, 4 * WIDTH, WIDTH),
        "ffn.down.weight": law.taken(s, 4, WIDTH, 4 * WIDTH),
    }
    return filled(made, s, **weights, attention_gate=s.heads[:1], ffn_gate=s.heads[1:2])(s.x, s.long)


def scored(s):
    return {
        "score.query_proj.weight": s.spare[0],
        "score.query_proj.bias": s.spare[1, 0],
        "score.memory_proj.weight": s.spare[2],
        "score.vector": s.spare[3, 0],
        "score.coverage": s.spare[4, 0],
    }


def states(s):
    return s.x[:, : law.STATES]


def additive(s):
    made = filled(mh.Bahdanau(WIDTH, WIDTH, law.HIDDEN), s, **scored(s))
    return made(states(s), made.remember(s.long)).context


def coverage(s):
    made = filled(mh.Bahdanau(WIDTH, WIDTH, law.HIDDEN, coverage=mh.Coverage()), s, **scored(s))
    memory, state, found, losses = made.remember(s.long), None, [], []
    for query in states(s).unbind(1):
        aligned = made.step(query, memory, state)
        state = aligned.state
        found.append(aligned.context)
        losses.append(state.loss)
    return torch.stack(found, 1), torch.stack(losses, 1)


def luong(s):
    made = filled(mh.Luong(WIDTH, WIDTH), s, score__memory_proj__weight=s.spare[0])
    return made(states(s), made.remember(s.long)).context


def monotonic(s):
    made = mh.Monotonic(WIDTH, WIDTH, law.HIDDEN, form="expected", offset=-0.5)
    with torch.no_grad():
        made.score.gain.fill_(0.7)
    made = filled(made, s, **scored(s))
    return made(states(s), made.remember(s.long)).context


@note(f"{len(mh.FAMILIES)} names, and any module")
def block(s):
    for name in mh.FAMILIES:
        found = mh.Block(WIDTH, name, heads=HEADS)(s.x, mask=CAUSAL)
        claim(found.shape == s.x.shape and found.isfinite().all(), f"{name} gives something else")
    return ()


@note("`estimate_cost`, `break_even`, `measure_cost`; `multihead variants`")
def cost(s):
    sizes = mh.Sizes(4096)
    for name in mh.FAMILIES:
        found = mh.estimate_cost(name, sizes)
        claim(found.forward > 0 and found.projections > 0, f"{name} costs nothing")
    claim(mh.break_even("linear", sizes), "never pays")
    return ()
