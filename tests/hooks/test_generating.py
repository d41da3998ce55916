"""Watching `generate`, or a cache used by hand, equals watching one pass over the whole sequence."""

import inspect
import itertools

import pytest
import torch
import transformers as hf
from transformers import DynamicCache

from hooks.families import FAMILIES, ids
from hooks.oracle import real_rows, weights_of
from hooks.tail_fallback import FALLBACK
from multihead.hooks import addresses, watching

NEW = 5


def watched(model, act):
    """What `act` returns, and for each call its address, itself, its weights and its rows that see anything."""
    calls = []

    def see(call):
        # A static cache is written over: what is to be compared later is worked out now.
        calls.append((call, weights_of(call.problem), real_rows(call.problem)))

    with torch.no_grad(), watching(model, see) as watch:
        result = act()
    places = addresses(watch.sites)
    return result, [(places[call.site], call, weights, rows) for call, weights, rows in calls]


def same_keep(told, want):
    return bool(want.all()) if told is None else torch.equal(told, want.bool())


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("llama", "dynamic"),
        ("llama", "static"),
        ("gpt2", "dynamic"),
        ("mistral", "dynamic"),
        ("mistral", "static"),
        ("bloom", "dynamic"),
        ("falcon", "dynamic"),
        ("falcon", "static"),
        ("gpt-neo", "dynamic"),
        ("mpt", "dynamic"),
        ("xglm", "dynamic"),
    ],
)
def test_a_generation_equals_one_pass(name, cache, padding):
    family = FAMILIES.get(name) or FALLBACK[name]
    model, inputs = family.build(), FAMILIES["gpt2"].inputs(padding)
    model.generation_config.eos_token_id = None
    extra = {"disable_compile": True} if cache == "static" else {}
    tokens, steps = watched(
        model,
        lambda: model.generate(
            **inputs, max_new_tokens=NEW, do_sample=False, cache_implementation=cache, pad_token_id=0, **extra
        ),
    )
    keep = torch.ones_like(tokens)
    if padding == "left":
        keep[:, : inputs["attention_mask"].shape[1]] = inputs["attention_mask"]
    # The last token is returned without being read.
    read, keep = tokens[:, :-1], keep[:, :-1]
    # `generate` counts positions from the first real token.
    places = (keep.cumsum(1) - 1).clamp(min=0)
    more = {"position_ids": places} if "position_ids" in inspect.signature(model.forward).parameters else {}
    _, whole = watched(model, lambda: model(input_ids=read, attention_mask=keep, **more))
    want = {place: (weights, rows) for place, call, weights, rows in whole}
    assert len(steps) == NEW * len(want)
    done = dict.fromkeys(want, 0)
    for place, call, weights, rows in steps:
        problem, first = call.problem, done[place]
        done[place] = total = first + problem.q_len
        assert torch.equal(call.queries.ids, read[:, first:total])
        assert same_keep(call.queries.keep, keep[:, first:total])
        # A sliding cache holds the last keys only, a static one has places that are still empty.
        dropped = max(total - problem.kv_len, 0)
        assert problem.q_offset == first - dropped
        assert torch.equal(call.keys.ids[:, : total - dropped], read[:, dropped:total])
        kept = torch.zeros(2, problem.kv_len)
        kept[:, : total - dropped] = keep[:, dropped:total]
        assert same_keep(call.keys.keep, kept)

        mine = torch.zeros(2, problem.heads, problem.q_len, read.shape[1] + problem.kv_len, dtype=torch.float64)
        mine[..., dropped : dropped + problem.kv_len] = weights
        rows = (rows & keep[:, None, first:total].bool())[..., None]
        other = want[place][0][:, :, first:total]
        mine = torch.where(rows, mine[..., : read.shape[1]], 0.0)
        torch.testing.assert_close(mine, torch.where(rows, other, 0.0), atol=1e-5, rtol=0)
    assert set(done.values()) == {read.shape[1]}


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_encoders_tokens_stay_known_while_the_decoder_writes(name):
    model, inputs = FAMILIES[name].build(), FAMILIES[name].inputs("left")
    given = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    model.generation_config.eos_token_id = None
    tokens, calls = watched(
        model, lambda: model.generate(**given, max_new_tokens=3, do_sample=False, pad_token_id=0, num_beams=1)
    )
    cross = [call for (stack, _), call, *_ in calls if stack == "cross"]
    assert len(cross) == 2 * 3
    for step, call in enumerate(cross):
        assert torch.equal(call.keys.ids, given["input_ids"])
        assert torch.equal(call.keys.keep, given["attention_mask"].bool())
        assert torch.equal(call.queries.ids, tokens[:, step // 2 : step // 2 + 1])
        assert call.problem.q_offset == step // 2
    decoder = [call for (stack, _), call, *_ in calls if stack == "decoder"]
    assert all(torch.equal(c.keys.ids, tokens[:, : n // 2 + 1]) for n, c in enumerate(decoder))
    assert sum(stack == "encoder" for (stack, _), *_ in calls) == 2


def test_tokens_are_unknown_once_the_rows_of_a_cache_change_places():
    model, first, second = FAMILIES["llama"].build(), ids(2, 6), ids(2, 3)

    def act(order):
        cache = DynamicCache(config=model.config)
        model(input_ids=first, cache=cache)
        cache.reorder_cache(torch.tensor(order))
        model(input_ids=second, cache=cache)

    _, kept = watched(model, lambda: act([0, 1]))
    assert all(torch.equal(call.keys.ids, torch.cat([first, second], dim=1)) for _, call, *_ in kept[2:])
    _, moved = watched(model, lambda: act([1, 0]))
    assert all(call.keys.ids is None for _, call, *_ in moved[2:])
    assert all(torch.equal(call.queries.ids, second) for _, call, *_ in moved[2:])
    assert all(call.problem.q_offset == 6 for _, call, *_ in moved[2:])


def test_a_cache_that_was_cut_back_keeps_the_tokens_that_are_left():
    model, first, second = FAMILIES["llama"].build(), ids(2, 6), ids(2, 3)

    def act():
        cache = DynamicCache(config=model.config)
        model(input_ids=first, cache=cache)
        cache.crop(-2)
        model(input_ids=second, cache=cache)

    _, calls = watched(model, act)
    assert all(torch.equal(call.keys.ids, torch.cat([first[:, :4], second], dim=1)) for _, call, *_ in calls[2:])


def test_a_cache_filled_before_the_watch_has_unknown_tokens():
    model = FAMILIES["llama"].build()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids(2, 6), cache=cache)
    _, calls = watched(model, lambda: model(input_ids=ids(2, 1), cache=cache))
    assert [(call.keys.ids, call.problem.q_offset) for _, call, *_ in calls] == [(None, 6), (None, 6)]


def test_beams_tell_no_wrong_tokens():
    model, inputs = FAMILIES["gpt2"].build(), FAMILIES["gpt2"].inputs()
    model.generation_config.eos_token_id = None
    _, calls = watched(model, lambda: model.generate(**inputs, max_new_tokens=6, num_beams=3, pad_token_id=0))
    # What a row's keys were computed from is what was read, row by row, unless rows changed places in between.
    first = [call for (_, layer), call, *_ in calls if layer == 0]
    assert len(first) == 6
    for before, call in itertools.pairwise(first):
        past = call.problem.kv_len - call.problem.q_len
        moved = not torch.equal(call.problem.k[:, :, :past], before.problem.k)
        assert (call.keys.ids is None) == (moved or before.keys.ids is None)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "gpt-neo", "falcon", "xglm", "t5", "fsmt"])
@pytest.mark.parametrize(
    "way", [{}, {"do_sample": True, "top_k": 9}, {"num_beams": 3}], ids=["greedy", "drawn", "beams"]
)
def test_a_watched_generation_writes_the_same(name, way, seed):
    model = (FAMILIES.get(name) or FALLBACK[name]).build()
    if name == "fsmt":
        model = hf.FSMTForConditionalGeneration(model.config).eval()
    inputs = FAMILIES["gpt2"].inputs("left")
    options = {"max_new_tokens": 4, "pad_token_id": 0, "do_sample": False, "num_beams": 1} | way
    torch.manual_seed(seed)
    plain = model.generate(**inputs, **options)
    torch.manual_seed(seed)
    calls = []
    with watching(model, calls.append):
        got = model.generate(**inputs, **options)
    assert torch.equal(got, plain)
    rows = {call.problem.batch for call in calls if call.site.stack != "encoder"}
    assert rows == {2 * way.get("num_beams", 1)}
