import pytest
import torch

from multihead.attend.selector.indexer import Indexer
from multihead.error import MultiheadError
from multihead.layer import Int8, Latent, LatentAttention, Sliding, Static
from multihead.layer.indexed import Index, IndexedAttention
from multihead.pattern import causal, padding
from multihead.position import DynamicNTK, Rotary

WIDE = torch.float64
SIZES = {"nope_dim": 6, "rope_dim": 4, "v_dim": 5}


def build(randomise, budget=4, *, q_rank=7, heads=3, **given):
    given = {"position": Rotary(layout="interleaved"), "bias": True} | given
    index = Index(budget, heads=heads, head_dim=8)
    return randomise(IndexedAttention(12, 3, Latent(8, **SIZES, q_rank=q_rank), index, **given)).double()


def dense(layer):
    """Latent attention of the same weights."""
    made = LatentAttention(12, 3, layer.latent, position=layer.position, bias=True).to(WIDE)
    made.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("index_")})
    return made


def close(got, want, tol=1e-11):
    torch.testing.assert_close(got, want, rtol=tol, atol=tol)


def test_room_for_all_is_latent_attention(randomise):
    x, keep = torch.randn(2, 9, 12, dtype=WIDE), torch.arange(9) < torch.tensor([[9], [6]])
    for rank in (7, None):
        layer = build(randomise, 9, q_rank=rank)
        for mask in (None, causal(), causal() & padding(keep), torch.rand(2, 1, 9, 9) < 0.6):
            close(layer(x, mask=mask), dense(layer)(x, mask=mask), 1e-6)


def turn(x, position, width):
    """The first numbers of a vector turned, one half against the other."""
    out, half = x.clone(), width // 2
    for j in range(half):
        angle = torch.tensor(position * 10000.0 ** (-2 * j / width), dtype=WIDE)
        a, b = x[j], x[j + half]
        out[j], out[j + half] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    return out


def scores_by_hand(layer, x):
    """For a batch of one: what the indexer gives each pair, causally."""
    w = {name: p.detach() for name, p in layer.named_parameters()}
    made_of = x
    if layer.latent.q_rank is not None:
        down = x @ w["q_down.weight"].T + w["q_down.bias"]
        made_of = w["q_norm.weight"] * down / torch.sqrt((down**2).mean(-1, keepdim=True) + 1e-6)
    k = x @ w["index_k.weight"].T
    k = (k - k.mean(-1, keepdim=True)) / torch.sqrt(k.var(-1, keepdim=True, unbiased=False) + 1e-6)
    k = k * w["index_norm.weight"] + w["index_norm.bias"]
    scores = torch.full((len(x), len(x)), -torch.inf, dtype=WIDE)
    for t in range(len(x)):
        q = (made_of[t] @ w["index_q.weight"].T).view(-1, 8)
        share = x[t] @ w["index_weights.weight"].T / len(q) ** 0.5
        for s in range(t + 1):
            products = torch.stack([turn(one, t, 4) @ turn(k[s], s, 4) for one in q]) / 8**0.5
            scores[t, s] = share @ products.clamp(min=0)
    return scores


def chosen_by_hand(layer, x, budget):
    """Which keys each query sees."""
    scores, seen = scores_by_hand(layer, x).tolist(), torch.zeros(len(x), len(x), dtype=torch.bool)
    for t, row in enumerate(scores):
        seen[t, sorted(range(t + 1), key=lambda s, row=row: (-row[s], s))[:budget]] = True
    return seen


@pytest.mark.parametrize("rank", [7, None])
def test_the_choice_by_hand(randomise, rank):
    layer, x = build(randomise, 3, q_rank=rank), torch.randn(2, 11, 12, dtype=WIDE)
    seen = torch.stack([chosen_by_hand(layer, one, 3) for one in x])[:, None]
    want = dense(layer)(x, mask=seen)
    close(layer(x, mask=causal()), want)
    close(layer(x, mask=causal().mask(11, 11)), want)
    assert not torch.allclose(want, dense(layer)(x, mask=causal()))


def test_decoding_is_the_whole_text_at_once(randomise):
    layer, x = build(randomise, 3), torch.randn(2, 15, 12, dtype=WIDE)
    keep = torch.arange(15) >= torch.tensor([[0], [4]])
    places = (keep.cumsum(1) - 1).clamp(min=0)
    for mask, given in ((causal(), {}), (causal() & padding(keep), {"positions": places})):
        want = layer(x, mask=mask, **given)
        for cuts in ([1] * 15, [7, 1, 3, 4], [15]):
            cache, got, first = layer.cache(batch=2), [], 0
            for part in x.split(cuts, 1):
                here = {name: one[:, first : first + part.shape[1]] for name, one in given.items()}
                got.append(layer(part, mask=mask, cache=cache, **here))
                first += part.shape[1]
            close(torch.cat(got, 1), want)
    cache.cut(9)
    cache.select([1, 0, 1])
    again = layer(
        x[[1, 0, 1], 9:], mask=causal() & padding(keep[[1, 0, 1]]), cache=cache, positions=places[[1, 0, 1], 9:]
    )
    close(again, want[[1, 0, 1], 9:])
    assert cache.nbytes > LatentAttention.cache(layer, batch=2).nbytes
    seen = causal().mask(15, 15)
    whole, cache = layer(x, mask=seen), layer.cache(batch=2, kind=Static(15))
    got = [layer(x[:, t : t + 1], mask=seen[:, :, t : t + 1, : t + 1], cache=cache) for t in range(15)]
    close(torch.cat(got, 1), whole)


def test_a_refusal_leaves_the_cache_as_it_was(randomise):
    layer, x = build(randomise), torch.randn(1, 5, 12, dtype=WIDE)
    cache = layer.cache(batch=1)
    layer(x, mask=causal(), cache=cache)
    with pytest.raises(MultiheadError):
        layer(x, mask=causal() & padding(torch.ones(7, dtype=torch.bool)), cache=cache)
    close(layer(x, mask=causal(), cache=cache), layer(torch.cat([x, x], 1), mask=causal())[:, 5:])


def test_the_future_and_batch_mates_change_nothing(randomise):
    layer, x = build(randomise, 3), torch.randn(2, 12, 12, dtype=WIDE)
    want = layer(x, mask=causal())
    later = x.clone()
    later[:, 7:] = 1e9
    assert torch.equal(layer(later, mask=causal())[:, :7], want[:, :7])
    mates = x.clone()
    mates[1] = 1e9
    assert torch.equal(layer(mates, mask=causal())[0], want[0])


@pytest.mark.parametrize("over", ["all", "chosen"])
def test_the_loss_is_the_indexers_alone(randomise, over):
    layer = build(randomise, 3)
    x = torch.randn(2, 9, 12, dtype=WIDE, requires_grad=True)
    seen = []
    plain = dense(layer)
    plain.attend = lambda p: (seen.append(p), LatentAttention.attend(plain, p))[1]
    mask = causal()
    if over == "chosen":
        mask = torch.stack([chosen_by_hand(layer, one, 3) for one in x.detach()])[:, None]
    plain(x, mask=mask)
    p = seen[0].normaliser.weigh(seen[0].scores(), seen[0].normaliser.settle(seen[0].scores())).mean(1).detach()
    loss = layer.index_loss(x, mask=causal(), over=over)
    loss.backward()
    grads = {name for name, one in layer.named_parameters() if one.grad is not None and one.grad.any()}
    assert grads == {"index_q.weight", "index_k.weight", "index_norm.weight", "index_norm.bias", "index_weights.weight"}
    assert x.grad is None
    inside = seen[0].allowed().expand(2, 1, 9, 9)[:, 0]
    found = torch.stack([scores_by_hand(layer, one) for one in x.detach()])
    logs = found.masked_fill(~inside, -torch.inf).log_softmax(-1)
    want = torch.where(p > 0, p * (p.log() - logs), 0.0).sum(-1).mean()
    close(loss, want)


def test_the_indexer_learns_what_attention_looks_at(randomise):
    layer, x = build(randomise, 4, heads=4), torch.randn(4, 16, 12, dtype=WIDE)
    chosen = [p for name, p in layer.named_parameters() if name.startswith("index_")]
    optimiser = torch.optim.Adam(chosen, lr=0.02)
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = layer.index_loss(x, mask=causal())
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_gradients_of_the_call_pass_the_indexer_by(randomise):
    layer, x = build(randomise), torch.randn(1, 7, 12, dtype=WIDE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, mask=causal()), (x,), fast_mode=True)
    layer(x, mask=causal()).square().sum().backward()
    none = {name for name, p in layer.named_parameters() if p.grad is None}
    assert none == {"index_q.weight", "index_k.weight", "index_norm.weight", "index_norm.bias", "index_weights.weight"}


def test_the_budget_is_of_keys(randomise):
    layer, seen = build(randomise, 3), []
    layer.attend = lambda p: (seen.append(p), LatentAttention.attend(layer, p))[1]
    layer(torch.randn(2, 10, 12, dtype=WIDE), mask=causal())
    counts = seen[0].allowed().sum(-1)
    assert counts.flatten(0, 1)[0].tolist() == [1, 2] + [3] * 8


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: Index(0, heads=2, head_dim=8), "budget=0"),
        (lambda: Index(2, heads=0, head_dim=8), "heads=0"),
        (lambda: Index(2, heads=2, head_dim=8, eps=0.0), "eps"),
        (lambda: plain(index=Index(2, heads=2, head_dim=3)), "rope_dim=4 wide.*head_dim=3"),
        (lambda: plain(index=7), "Index"),
        (lambda: plain(position=Rotary(scaling=DynamicNTK(2.0, 8))), "angles that stay as they are"),
        (lambda: plain().cache(batch=1, kind=Sliding(4)), "chooses among all tokens"),
        (lambda: plain().cache(batch=1, kind=Int8()), "chooses among all tokens"),
        (lambda: plain()(torch.randn(1, 5, 12), cache=7), "a cache of this module"),
        (
            lambda: plain()(torch.randn(1, 5, 12), cache=LatentAttention.cache(plain(), batch=1)),
            "a cache of this module",
        ),
        (lambda: plain()(torch.randn(1, 5, 11)), r"query \(batch, length, 12\)"),
        (lambda: plain().index_loss(torch.randn(1, 5, 12), over="some"), "over='some'"),
    ],
)
@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused(use, told):
    with pytest.raises(MultiheadError, match=f"(?s){told}"):
        use()


def plain(**given):
    given = {"index": Index(2, heads=2, head_dim=8)} | given
    return IndexedAttention(12, 3, Latent(8, **SIZES), given.pop("index"), **given)


def test_it_says_what_it_is():
    assert "Index(budget=2" in repr(plain())
    assert not IndexedAttention.SUPPORT.cross
    assert isinstance(Indexer(2), Indexer)
