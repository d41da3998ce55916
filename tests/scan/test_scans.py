"""The scans against their laws, pairs of tokens one by one, each other, and fla's references."""

import importlib.util
import itertools
import math
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from multihead.scan import DeltaState, LinearState, chunked, delta_rule, law, linear_attention, linear_attention_full

WIDE = torch.float64
B, H, L, D, E = 2, 4, 23, 5, 3
DECAYS = ("none", "head", "token", "channel")


def decays(kind, heads, length=L):
    shape = {"head": (heads,), "token": (B, heads, length), "channel": (B, heads, length, D)}
    return None if kind == "none" else -2 * torch.rand(shape[kind], dtype=WIDE)


def drawn(kv_heads=H, length=L):
    q, k = torch.rand(B, H, length, D, dtype=WIDE), torch.rand(B, kv_heads, length, D, dtype=WIDE)
    return q, k, torch.randn(B, kv_heads, length, E, dtype=WIDE)


def same(got, want, atol=1e-10):
    torch.testing.assert_close(got.out, want.out, rtol=atol, atol=atol)
    torch.testing.assert_close(got.state.memory, want.state.memory, rtol=atol, atol=atol)
    if isinstance(want.state, LinearState):
        torch.testing.assert_close(got.state.mass, want.state.mass, rtol=atol, atol=atol)


def quadratic(q, k, v, log_decay, *, normalise):
    """Every pair of tokens by itself."""
    out = torch.zeros(B, H, q.shape[2], E, dtype=WIDE)
    for b, h, t in itertools.product(range(B), range(H), range(q.shape[2])):
        g, rows = h * k.shape[1] // H, []
        for j in range(t + 1):
            decay = torch.zeros(D, dtype=WIDE)
            if log_decay is not None:
                place = h * log_decay.shape[0 if log_decay.ndim == 1 else 1] // H
                for s in range(j + 1, t + 1):
                    decay = decay + (log_decay[place] if log_decay.ndim == 1 else log_decay[b, place, s])
            rows.append((q[b, h, t] * torch.exp(decay) * k[b, g, j]).sum())
        out[b, h, t] = sum(row * v[b, g, j] for j, row in enumerate(rows)) / (sum(rows) if normalise else 1)
    return out


@pytest.fixture(params=[1, 7])
def _chunk(request, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", request.param)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("normalise", [True, False])
def test_pairs_of_tokens_are_the_recurrence(kind, normalise):
    q, k, v = drawn(kv_heads=2, length=6)
    log_decay = decays(kind, 4 if kind == "token" else 2, length=6)
    want = quadratic(q, k, v, log_decay, normalise=normalise)
    got = law.linear(q, k, v, log_decay=log_decay, normalise=normalise).out
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("_chunk")
@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("documents", [False, True])
def test_chunks_are_the_recurrence(kind, documents):
    for kv_heads, own, normalise in itertools.product((4, 2), (False, True), (True, False)):
        q, k, v = drawn(kv_heads)
        log_decay = decays(kind, H if own else kv_heads)
        states = kv_heads if log_decay is None else max(kv_heads, H if own else kv_heads)
        given = {"log_decay": log_decay}
        if documents:
            given |= {"reset": torch.rand(B, L) < 0.2, "valid": torch.rand(B, L) < 0.7}
        memory, mass = torch.randn(B, states, D, E, dtype=WIDE), torch.rand(B, states, D, dtype=WIDE)
        state = LinearState(memory=memory, mass=mass if normalise else None)
        for before in (None, state):
            want = law.linear(q, k, v, **given, normalise=normalise, state=before)
            same(linear_attention(q, k, v, **given, normalise=normalise, state=before), want)
        beta, k = 2 * torch.rand(B, H if own else kv_heads, L, dtype=WIDE), normalize(k, dim=-1)
        written = torch.randn(B, max(states, beta.shape[1]), D, E, dtype=WIDE)
        for before in (None, DeltaState(memory=written)):
            same(delta_rule(q, k, v, beta, **given, state=before), law.delta(q, k, v, beta, **given, state=before))


@pytest.mark.parametrize("kind", DECAYS)
def test_a_long_one_in_stretches_is_the_recurrence(kind, monkeypatch):
    """More chunks than are taken together, in more stretches than one."""
    q, k, v = drawn(length=90)
    monkeypatch.setattr(chunked, "CHUNK", 2)
    log_decay, beta = decays(kind, H, 90), torch.rand(B, H, 90, dtype=WIDE)
    for at_once in (8, 320):
        monkeypatch.setattr(chunked, "_AT_ONCE", at_once)
        same(linear_attention(q, k, v, log_decay=log_decay), law.linear(q, k, v, log_decay=log_decay))
        unit = normalize(k, dim=-1)
        want = law.delta(q, unit, v, beta, log_decay=log_decay)
        same(delta_rule(q, unit, v, beta, log_decay=log_decay), want)


@pytest.mark.parametrize("kind", DECAYS)
def test_split_anywhere_with_a_state_is_unsplit(kind):
    (q, k, v), log_decay, beta = drawn(kv_heads=2), decays(kind, 2), torch.rand(B, 2, L, dtype=WIDE)
    reset, valid = torch.rand(B, L) < 0.1, torch.rand(B, L) < 0.8
    k = normalize(k, dim=-1)

    def part(scan, state, start, stop, *strength):
        tokens = (x[:, :, start:stop] for x in (q, k, v, *strength))
        moving = log_decay is not None and log_decay.ndim > 1
        return scan(
            *tokens,
            log_decay=log_decay[:, :, start:stop] if moving else log_decay,
            state=state,
            reset=reset[:, start:stop],
            valid=valid[:, start:stop],
        )

    for scan, strength in ((linear_attention, ()), (delta_rule, (beta,))):
        want = part(scan, None, 0, L, *strength)
        for edges in (*([0, t, L] for t in (0, 1, 2, 7, 22, 23)), list(range(L + 1))):
            outs, state = [], None
            for start, stop in itertools.pairwise(edges):
                made = part(scan, state, start, stop, *strength)
                outs.append(made.out)
                state = made.state
            torch.testing.assert_close(torch.cat(outs, 2), want.out, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(state.memory, want.state.memory, rtol=1e-10, atol=1e-10)


def test_each_is_a_special_case_of_the_next():
    q, k, v = drawn()
    retention = torch.tensor([math.log(1 - 2.0 ** (-5 - h)) for h in range(H)], dtype=WIDE)
    token = retention[None, :, None].expand(B, H, L)
    for normalise in (True, False):
        plain = linear_attention(q, k, v, normalise=normalise).out
        for zero in (torch.zeros(H), torch.zeros(B, H, L), torch.zeros(B, H, L, D)):
            got = linear_attention(q, k, v, log_decay=zero.double(), normalise=normalise).out
            torch.testing.assert_close(got, plain, rtol=1e-10, atol=1e-10)
        heads = linear_attention(q, k, v, log_decay=retention, normalise=normalise).out
        assert not torch.allclose(heads, plain, atol=1e-3)
        for same_decay in (token, token[..., None].expand(B, H, L, D)):
            got = linear_attention(q, k, v, log_decay=same_decay, normalise=normalise).out
            torch.testing.assert_close(got, heads, rtol=1e-10, atol=1e-10)
    beta, unit = torch.rand(B, H, L, dtype=WIDE), normalize(k, dim=-1)
    gated = delta_rule(q, unit, v, beta, log_decay=torch.zeros(B, H, L, dtype=WIDE)).out
    torch.testing.assert_close(delta_rule(q, unit, v, beta).out, gated, rtol=1e-10, atol=1e-10)


def test_with_keys_at_right_angles_nothing_is_replaced():
    """beta = 1: each key finds nothing under it, and is written as it is."""
    q, v = torch.randn(B, H, 6, 6, dtype=WIDE), torch.randn(B, H, 6, E, dtype=WIDE)
    k = torch.linalg.qr(torch.randn(B, H, 6, 6, dtype=WIDE)).Q
    got = delta_rule(q, k, v, torch.ones(B, H, 6, dtype=WIDE)).out
    torch.testing.assert_close(got, linear_attention(q, k, v, normalise=False).out, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", DECAYS[2:])
@pytest.mark.parametrize("strong", [-1e4, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_a_decay_without_end_leaves_the_current_token_alone(kind, strong, dtype):
    q, k, v = (x.to(dtype) for x in drawn())
    log_decay = torch.full_like(decays(kind, H), strong).to(dtype).requires_grad_()
    got = linear_attention(q, k, v, log_decay=log_decay)
    torch.testing.assert_close(got.out, v)
    got.out.sum().backward()
    assert log_decay.grad.isfinite().all()
    unit, beta = normalize(k, dim=-1), torch.rand(B, H, L, dtype=dtype)
    want = (q * unit).sum(-1, keepdim=True) * beta[..., None] * v
    torch.testing.assert_close(delta_rule(q, unit, v, beta, log_decay=log_decay.detach()).out, want)


@pytest.mark.parametrize("kind", DECAYS)
def test_small_decays_after_strong_ones_are_exact(kind):
    """In float32 the sums of a chunk are large; their differences must not lose what is behind the point."""
    q, k, v = drawn(length=60)
    log_decay = decays(kind, H, 60)
    if log_decay is not None and log_decay.ndim > 1:
        log_decay = torch.where(
            torch.arange(60).view(60, *[1] * (log_decay.ndim - 3)) % 20 == 0, -90.0, log_decay / 100
        )
    reset = torch.arange(60).expand(B, 60) % 13 == 12
    want = law.linear(q, k, v, log_decay=log_decay, reset=reset)
    narrow = [None if x is None else x.float() for x in (q, k, v, log_decay)]
    got = linear_attention(*narrow[:3], log_decay=narrow[3], reset=reset)
    torch.testing.assert_close(got.out.double(), want.out, rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize("kind", DECAYS)
def test_documents_in_a_row_are_documents_by_themselves(kind):
    (q, k, v), log_decay, beta = drawn(), decays(kind, H), torch.rand(B, H, L, dtype=WIDE)
    cuts = [0, 4, 5, 16, L]
    reset = torch.zeros(B, L, dtype=torch.bool)
    reset[:, cuts[:-1]] = True
    k = normalize(k, dim=-1)
    for scan, strength in ((linear_attention, ()), (delta_rule, (beta,))):
        got, parts = scan(q, k, v, *strength, log_decay=log_decay, reset=reset), []
        for a, b in itertools.pairwise(cuts):
            own = log_decay if log_decay is None or log_decay.ndim == 1 else log_decay[:, :, a:b]
            parts.append(scan(*(x[:, :, a:b] for x in (q, k, v, *strength)), log_decay=own))
        torch.testing.assert_close(got.out, torch.cat([part.out for part in parts], 2), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(got.state.memory, parts[-1].state.memory, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("garbage", [1e6, torch.inf, torch.nan])
def test_padding_adds_nothing_whatever_stands_in_it(garbage):
    q, k, v = drawn()
    valid = torch.rand(B, L) < 0.6
    valid[:, 0] = False
    valid[1] = False
    beta, unit = torch.rand(B, H, L, dtype=WIDE), normalize(k, dim=-1)
    wrong = [x.masked_fill(~valid[:, None, :, None], garbage) for x in (q, k, v, unit)]
    for got in (linear_attention(*wrong[:3], valid=valid), delta_rule(wrong[0], wrong[3], wrong[2], beta, valid=valid)):
        assert not got.out[~valid[:, None].expand(B, H, L)].any()
        assert not got.state.memory[1].any()
    got, there = linear_attention(*wrong[:3], valid=valid), valid[0].nonzero()[:, 0]
    want = linear_attention(*(x[:1, :, there] for x in (q, k, v)))
    torch.testing.assert_close(got.out[:1, :, there], want.out)
    torch.testing.assert_close(got.state.mass[:1], want.state.mass)
    got = delta_rule(wrong[0], wrong[3], wrong[2], beta, valid=valid)
    want = delta_rule(*(x[:1, :, there] for x in (q, unit, v, beta)))
    torch.testing.assert_close(got.out[:1, :, there], want.out)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_the_future_nor_a_batch_mate_moves_a_bit(kind, dtype):
    (q, k, v), log_decay = drawn(length=150), decays(kind, H, 150)
    beta = torch.rand(B, H, 150, dtype=WIDE)
    for at in (40, 70, 128):
        other = [x.clone() for x in (q, k, v, beta)]
        for x, size in zip(other, (1e6, 1e6, 1e6, 1.0), strict=True):
            x[0, :, at:] = size
            x[1] = size
        outs = []
        for a, b, c, strength in ((q, k, v, beta), other):
            a, b, c, s = (x.to(dtype) for x in (a, b, c, strength))
            narrow = None if log_decay is None else log_decay.to(dtype)
            unit = normalize(b.float(), dim=-1).to(dtype)
            outs.append(
                (linear_attention(a, b, c, log_decay=narrow).out, delta_rule(a, unit, c, s, log_decay=narrow).out)
            )
        for mine, theirs in zip(*outs, strict=True):
            assert torch.equal(mine[0, :, :at], theirs[0, :, :at])


def test_the_state_is_wide_and_outputs_are_not():
    q, k, v = (x.bfloat16() for x in drawn(length=200))
    beta, unit = torch.rand(B, H, 200).bfloat16(), normalize(k.float(), dim=-1).bfloat16()
    for got, want in (
        (linear_attention(q, k, v), law.linear(*(x.double() for x in (q, k, v)))),
        (delta_rule(q, unit, v, beta), law.delta(*(x.double() for x in (q, unit, v, beta)))),
    ):
        assert (got.out.dtype, got.state.memory.dtype) == (torch.bfloat16, torch.float32)
        torch.testing.assert_close(got.state.memory.double(), want.state.memory, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.out.double(), want.out, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_gradients(kind, chunk, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", chunk)
    q, k, v = (x[:1, -2:, :, :3] for x in drawn(kv_heads=2, length=5))
    k, v, log_decay = k[:, :1], v[:, :1], decays(kind, 1, 5)
    log_decay = log_decay if log_decay is None or kind == "head" else log_decay[:1, :, :, ...]
    log_decay = log_decay[..., :3] if kind == "channel" else log_decay
    beta, state = torch.rand(1, 1, 5, dtype=WIDE), torch.rand(1, 1, 3, E, dtype=WIDE)
    mass = torch.rand(1, 1, 3, dtype=WIDE)
    inputs = [
        x.detach().requires_grad_() for x in (q, k, v, beta, state, mass, *([] if log_decay is None else [log_decay]))
    ]

    def both(q, k, v, beta, memory, mass, log_decay=None):
        one = linear_attention(q, k, v, log_decay=log_decay, state=LinearState(memory=memory, mass=mass))
        two = delta_rule(q, normalize(k, dim=-1), v, beta, log_decay=log_decay, state=DeltaState(memory=memory))
        return one.out, one.state.memory, one.state.mass, two.out, two.state.memory

    assert torch.autograd.gradcheck(both, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(both, inputs, fast_mode=True)


def test_rows_that_see_nothing_have_no_gradient():
    q, k, v = (x.requires_grad_() for x in drawn())
    valid = torch.zeros(B, L, dtype=torch.bool)
    valid[0, 5:] = True
    (linear_attention(q, k, v, valid=valid).out.sum() + linear_attention_full(q, k, v, valid=valid).sum()).backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
        assert not x.grad[1].any()


def test_all_see_all():
    q, k, v = drawn(kv_heads=2)
    q = q[:, :, :4]
    valid = torch.rand(B, L) < 0.5
    valid[1] = False
    out = torch.zeros(B, H, 4, E, dtype=WIDE)
    for normalise in (True, False):
        for b, h, t in itertools.product(range(B), range(H), range(4)):
            weights = [(q[b, h, t] @ k[b, h // 2, j]) * valid[b, j] for j in range(L)]
            total = sum(weights) if normalise and valid[b].any() else 1.0
            out[b, h, t] = sum(weight * v[b, h // 2, j] for j, weight in enumerate(weights)) / total
        torch.testing.assert_close(linear_attention_full(q, k, v, normalise=normalise, valid=valid), out)
    order = torch.randperm(L)
    torch.testing.assert_close(linear_attention_full(q, k[:, :, order], v[:, :, order]), linear_attention_full(q, k, v))
    last = linear_attention(torch.cat([q] * 6, 2)[:, :, :L], k, v).out[:, :, -1]
    torch.testing.assert_close(linear_attention_full(torch.cat([q] * 6, 2)[:, :, L - 1 : L], k, v)[:, :, 0], last)


def test_beams_take_their_states_with_them():
    q, k, v = drawn()
    for state, scan, more in (
        (linear_attention(q, k, v).state, linear_attention, ()),
        (delta_rule(q, k, v, torch.rand(B, H, L, dtype=WIDE)).state, delta_rule, (torch.rand(B, H, 1, dtype=WIDE),)),
    ):
        tokens = [x[:, :, :1] for x in (q, k, v, *more)]
        want = scan(*tokens, state=state).out
        got = scan(*(x[[1, 1, 0]] for x in tokens), state=state.select([1, 1, 0])).out
        assert torch.equal(got, want[[1, 1, 0]])


def reference(name):
    path = Path(sysconfig.get_path("purelib"), "fla", "ops", name, "naive.py")
    spec = importlib.util.spec_from_file_location(f"fla_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_they_are_those_of_fla():
    """Theirs are (batch, length, heads, width) but for two, in float32, and multiply queries by head_dim ** -0.5."""
    q, k, v = (x.float() for x in drawn(length=64))
    scale, turned = D**-0.5, [x.transpose(1, 2) for x in (q, k, v)]

    def close(got, want, state=None):
        torch.testing.assert_close(got.out, want, rtol=1e-4, atol=1e-5)
        if state is not None:
            torch.testing.assert_close(got.state.memory, state, rtol=1e-4, atol=1e-5)

    theirs = reference("linear_attn")
    for normalise in (True, False):
        got = linear_attention(q if normalise else q * scale, k, v, normalise=normalise)
        want, _ = theirs.naive_recurrent_linear_attn(*turned, normalize=normalise)
        close(got, want.transpose(1, 2))
        close(got, theirs.naive_chunk_linear_attn(*turned, normalize=normalise).transpose(1, 2))
    token, channel = decays("token", H, 64).float(), decays("channel", H, 64).float()
    theirs = reference("simple_gla")
    got = linear_attention(q * scale, k, v, log_decay=token, normalise=False)
    for name in ("naive_recurrent_simple_gla", "naive_chunk_simple_gla"):
        want, state = getattr(theirs, name)(*turned, token.transpose(1, 2), output_final_state=True)
        close(got, want.transpose(1, 2), state)
    got = linear_attention(q * scale, k, v, log_decay=channel, normalise=False)
    want, state = reference("gla").naive_recurrent_gla(*turned, channel.transpose(1, 2), output_final_state=True)
    close(got, want.transpose(1, 2), state)
    gamma = torch.log1p(-(2.0 ** (-5 - torch.arange(H))))
    close(
        linear_attention(q * scale, k, v, log_decay=gamma, normalise=False),
        reference("retention").naive_retention(q, k, v),
    )
    beta, unit = torch.rand(B, H, 64), normalize(k, dim=-1)
    want, state = reference("delta_rule").delta_rule_recurrence(q, unit, v, beta)
    close(delta_rule(q * scale, unit, v, beta), want, state)
    theirs = reference("gated_delta_rule").naive_recurrent_gated_delta_rule
    given = (turned[0], unit.transpose(1, 2), turned[2], beta.transpose(1, 2), token.transpose(1, 2))
    want, state = theirs(*given, output_final_state=True)
    close(delta_rule(q * scale, unit, v, beta, log_decay=token), want.transpose(1, 2), state)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("huge", [1e10, 1e19, 1e30, 3e38, torch.inf, torch.nan])
@pytest.mark.parametrize("what", ["k", "v"])
def test_what_is_too_large_reaches_no_earlier_token_and_no_batch_mate(kind, huge, what):
    """Sums that run over, in the middle of a chunk: inf and NaN stay where they arise and behind."""
    (q, k, v), log_decay = drawn(length=150), decays(kind, H, 150)
    q, k, v = (x.float() for x in (q, k, v))
    log_decay = log_decay if log_decay is None else log_decay.float()
    beta, at = torch.rand(B, H, 150), 100
    other = {"k": k.clone(), "v": v.clone()}
    other[what][0, :, at:] = huge
    for scan, strength, unit in ((linear_attention, (), False), (delta_rule, (beta,), True)):
        keys = [normalize(x, dim=-1) if unit else x for x in (k, other["k"])]
        keys[1][0, :, at:] = torch.where(other["k"][0, :, at:].isfinite(), keys[1][0, :, at:], huge)
        want = scan(q, keys[0], v, *strength, log_decay=log_decay).out
        got = scan(q, keys[1], other["v"], *strength, log_decay=log_decay).out
        assert torch.equal(got[1:], want[1:])
        # To the bit where the chunk gave numbers; rounded otherwise where it had to be gone through token by token.
        torch.testing.assert_close(got[0, :, :at], want[0, :, :at], rtol=1e-4, atol=1e-4)
