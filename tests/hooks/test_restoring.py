"""Nothing stays behind: not after an end, not after an exception, not between models, threads and nested watches."""

import contextlib
import copy
import threading
import weakref

import pytest
import torch
from torch import nn
from transformers import AttentionInterface
from transformers.utils.generic import GeneralInterface

from hooks.families import FAMILIES, ids
from hooks.own import HEADS, WIDTH, NanoGPT, Tutorial
from hooks.tail_fallback import FALLBACK
from multihead.hooks import gated, watching


class Broken(RuntimeError):
    pass


def traces(*models):
    """Everything that watching touches, by identity."""
    hooks = [
        (tuple(module._forward_pre_hooks.values()), tuple(module._forward_hooks.values()), tuple(vars(module)))
        for model in models
        for module in model.modules()
    ]
    table = {name: id(function) for name, function in AttentionInterface._global_mapping.items()}
    lookups = {name: id(value) for name, value in vars(AttentionInterface).items()}
    return (
        hooks,
        table,
        lookups,
        id(GeneralInterface.__getitem__),
        [repr(getattr(model, "config", None)) for model in models],
    )


OWN = {
    "tutorial": Tutorial,
    "nanogpt": lambda: NanoGPT(flash=True),
    "torch": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True), 2),
}


def ready(name, kernel=None):
    """A model that has run once (transformers leaves hooks of its own at the first run) and its inputs."""
    if name in OWN:
        model = OWN[name]().eval()
        given = {"tutorial": "x", "nanogpt": "input_ids", "torch": "src"}[name]
        inputs = {given: ids(2, 5) % 30 if name == "nanogpt" else torch.randn(2, 5, WIDTH)}
    elif name in FALLBACK:
        model, inputs = FALLBACK[name].build(), FALLBACK[name].inputs()
    else:
        family = FAMILIES[name]
        model, inputs = family.build(kernel or family.kernels[0]), family.inputs()
    with torch.no_grad():
        model(**inputs)
    return model, inputs


def breaks(*_):
    raise Broken


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_nothing_stays_after_an_exception_in_the_model(kernel):
    model, inputs = ready("bart", kernel)
    before = traces(model)
    handle = model.model.decoder.layers[1].fc1.register_forward_pre_hook(breaks)
    calls, passes = [], []
    with pytest.raises(Broken), torch.no_grad(), watching(model, calls.append, on_pass=passes.append):
        model(**inputs)
    handle.remove()
    assert traces(model) == before
    assert len(calls) == 6
    assert passes == [False]


@pytest.mark.parametrize("name", ["bart", "bloom", "nanogpt", "tutorial", "torch"])
def test_passes_are_told_with_how_they_ended(name):
    model, inputs = ready(name)
    passes = []
    with torch.no_grad(), watching(model, lambda call: None, on_pass=passes.append):
        model(**inputs)
        inner = [m for path, m in model.named_modules() if isinstance(m, nn.Linear) and not path.endswith("lm_head")]
        handle = inner[-1].register_forward_pre_hook(breaks)
        with pytest.raises(Broken):
            model(**inputs)
        handle.remove()
        model(**inputs)
    assert passes == [True, False, True]


@pytest.mark.parametrize("fault", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["bloom", "wavlm", "xlnet", "tutorial", "nanogpt", "torch"])
def test_no_lookout_stays_up_when_a_layer_fails(name, fault):
    model, inputs = ready(name)
    before, calls = traces(model), []

    def stop(call):
        calls.append(call)
        # The first call is told while the model goes on, or at the end of its pass.
        raise fault

    with pytest.raises(fault), torch.no_grad(), watching(model, stop):
        model(**inputs)
    assert len(calls) == 1
    assert traces(model) == before
    assert torch.overrides._get_current_function_mode() is None
    with torch.no_grad(), watching(model, calls.append):
        model(**inputs)
    assert [call.site.repeat for call in calls[1:]] == [0] * (len(calls) - 1)


@pytest.mark.parametrize("fault", [Broken, KeyboardInterrupt])
def test_the_watch_goes_on_after_an_exception_was_caught_inside(fault):
    model, inputs = ready("albert")
    calls, passes = [], []

    def stop(*_):
        raise fault

    with torch.no_grad(), watching(model, lambda call: calls.append(call.site), on_pass=passes.append):
        handle = model.albert.encoder.albert_layer_groups[0].albert_layers[0].ffn.register_forward_pre_hook(stop)
        with pytest.raises(fault):
            model(**inputs)
        handle.remove()
        assert [site.repeat for site in calls] == [0]
        model(**inputs)
    assert [site.repeat for site in calls] == [0, 0, 1, 2]
    assert passes == [False, True]


def test_a_part_run_by_itself_after_an_exception_begins_anew():
    model, inputs = ready("bart")
    seen = []
    with torch.no_grad(), watching(model, lambda call: seen.append(call.site)):
        handle = model.model.decoder.layers[0].fc1.register_forward_pre_hook(breaks)
        with pytest.raises(Broken):
            model(**inputs)
        handle.remove()
        model.get_encoder()(input_ids=inputs["input_ids"])
    assert [site.repeat for site in seen] == [0] * 6
    assert seen[:2] == seen[-2:]


def test_an_exception_of_the_observer_goes_up_and_nothing_stays():
    model, inputs = ready("llama")
    before = traces(model)
    with pytest.raises(Broken), torch.no_grad(), watching(model, breaks):
        model(**inputs)
    assert traces(model) == before


def test_nothing_stays_after_an_exception_outside_of_the_model():
    model, _ = ready("gpt2")
    before = traces(model)
    with pytest.raises(Broken), watching(model, breaks), gated(model, {"L0.H0": 0.5}):
        raise Broken
    assert traces(model) == before


def test_each_watch_sees_its_own_model_only():
    (one, given), (other, also) = ready("bert"), ready("llama")
    before = traces(one, other)
    ones, others = [], []
    with torch.no_grad(), watching(one, lambda c: ones.append(c.site.module)):
        other(**also)
        assert ones == []
        with watching(other, lambda c: others.append(c.site.module)):
            one(**given)
            other(**also)
        other(**also)
        one(**given)
    assert traces(one, other) == before
    assert ones == ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"] * 2
    assert others == ["model.layers.0.self_attn", "model.layers.1.self_attn"]


def test_watches_that_overlap_without_nesting_come_apart():
    (one, given), (other, also) = ready("bert"), ready("llama")
    before = traces(one, other)
    first, second = watching(one, lambda c: seen.append("one")), watching(other, lambda c: seen.append("other"))
    seen = []
    with torch.no_grad():
        first.__enter__()
        second.__enter__()
        one(**given), other(**also)
        first.__exit__(None, None, None)
        one(**given), other(**also)
        second.__exit__(None, None, None)
        one(**given), other(**also)
    assert seen == ["one", "one", "other", "other", "other", "other"]
    assert traces(one, other) == before


@pytest.mark.parametrize(("name", "told"), [("t5", 6), ("bloom", 2), ("tutorial", 1), ("torch", 2), ("fsmt", 6)])
def test_nested_watches_of_one_model_see_the_same(name, told):
    model, inputs = ready(name)
    inner, outer = [], []
    with (
        torch.no_grad(),
        watching(model, lambda c: outer.append(c.site)),
        watching(model, lambda c: inner.append(c.site)),
    ):
        model(**inputs)
    assert inner == outer
    assert len(inner) == told
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_model_within_a_watched_model_is_watched_too():
    model, inputs = ready("llama")
    seen = []
    with torch.no_grad(), watching(model.model, lambda c: seen.append(c.site.module)):
        model(**inputs)
    assert seen == ["layers.0.self_attn", "layers.1.self_attn"]


def test_threads_watch_without_hearing_each_other():
    names, rounds = ("albert", "t5", "whisper", "bloom", "nanogpt", "torch"), 6
    models = {name: ready(name) for name in names}
    before = traces(*(model for model, _ in models.values()))
    want = {"albert": 18, "t5": 36, "whisper": 36, "bloom": 12, "nanogpt": 12, "torch": 12}
    seen, wrong = {name: [] for name in names}, []
    start = threading.Barrier(len(names))

    def work(name):
        model, inputs = models[name]
        with torch.no_grad():
            plain = model(**inputs)[0]
            start.wait()
            for _ in range(rounds):
                with watching(model, lambda c: seen[name].append((threading.get_ident(), c.site))):
                    wrong.extend([name] * (not torch.equal(model(**inputs)[0], plain)))

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert {name: len(calls) for name, calls in seen.items()} == want
    for name, calls in seen.items():
        assert len({thread for thread, _ in calls}) == 1
        assert all(site.module in dict(models[name][0].named_modules()) for _, site in calls)
    assert traces(*(model for model, _ in models.values())) == before


@pytest.mark.parametrize(("name", "told"), [("albert", [0, 1, 2]), ("bloom", [0, 0]), ("torch", [0, 0])])
def test_one_model_run_by_two_threads_is_told_apart(name, told):
    model, inputs = ready(name)
    seen, start = [], threading.Barrier(2)

    def work():
        start.wait()
        with torch.no_grad():
            for _ in range(5):
                model(**inputs)

    with watching(model, lambda c: seen.append((threading.get_ident(), c.site.repeat))):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for ident in {ident for ident, _ in seen}:
        assert [repeat for other, repeat in seen if other == ident] == told * 5


def test_a_copy_made_under_watch_is_not_watched():
    model, inputs = ready("gpt2")
    seen = []
    with torch.no_grad(), watching(model, lambda c: seen.append(c.site)):
        twin = copy.deepcopy(model)
        assert torch.equal(twin(**inputs)[0], model(**inputs)[0])
    assert len(seen) == 2


@pytest.mark.parametrize("name", ["llama", "bloom", "deberta-v2", "falcon", "gpt-neo", "nanogpt", "torch"])
def test_gradients_are_the_same_under_watch(name):
    model, inputs = ready(name)
    plain = torch.autograd.grad(model(**inputs)[0].sum(), list(model.parameters()))
    with watching(model, lambda call: None):
        watched = torch.autograd.grad(model(**inputs)[0].sum(), list(model.parameters()))
    assert all(map(torch.equal, plain, watched))


@pytest.mark.parametrize("name", ["llama", "bloom", "gpt-neo", "falcon", "deberta-v2", "roformer"])
def test_layers_run_again_by_gradient_checkpoints_are_told_once(name, seed):
    model, inputs = ready(name)
    model.activation_checkpointing_enable()
    model.train()
    seen, results = [], []
    options = {"use_cache": False} if "CausalLM" in type(model).__name__ else {}
    for watch in (False, True):
        model.zero_grad()
        torch.manual_seed(seed)
        with watching(model, lambda call: seen.append(call.site)) if watch else contextlib.nullcontext():
            loss = model(**inputs, **options)[0].square().sum()
            loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(seen) == len(set(seen)) == 2
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["bert", "mpnet", "nanogpt"])
def test_nothing_the_watch_gives_is_held_by_it(name):
    model, inputs = ready(name)
    held = []
    with torch.no_grad(), watching(model, lambda call: held.append(weakref.ref(call.problem.v))):
        model(**inputs)
        assert [ref() for ref in held] == [None, None]
