"""Watching changes nothing, and what it tells is what the model computed."""

import pytest
import torch
import transformers as hf

from hooks.families import ENCODER, FAMILIES, LENGTH, PICTURE, RUNS, TARGET, ids, twin
from hooks.oracle import output_of, real_rows, weights_of
from multihead.hooks import addresses, watching

EAGER_OUTPUTS = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


def run(model, inputs):
    """Outputs of a model as a tuple of tensors, and every call with its address."""
    calls = []
    with torch.no_grad(), watching(model, calls.append) as watched:
        outputs = model(**inputs)
    places = addresses(watched.sites)
    return outputs, [(places[call.site], call) for call in calls]


@pytest.mark.parametrize(("name", "kernel", "padding"), RUNS)
def test_outputs_are_untouched_and_calls_reproduce_the_models_own_weights(name, kernel, padding):
    family = FAMILIES[name]
    model, inputs = family.build(kernel), family.inputs(padding)
    with torch.no_grad():
        plain = model(**inputs)[0]
        told = twin(family, model)(**inputs, output_attentions=True)
    outputs, calls = run(model, inputs)
    assert torch.equal(outputs[0], plain)
    with torch.no_grad():
        assert torch.equal(model(**inputs)[0], plain)

    assert [place for place, _ in calls if place[0] == calls[0][0][0]] == [
        (calls[0][0][0], layer) for layer in range(dict(family.layers)[calls[0][0][0]])
    ]
    assert {(stack, layer) for (stack, layer), _ in calls} == {
        (s, n) for s, count in family.layers for n in range(count)
    }
    for (stack, layer), call in calls:
        assert call.kernel == kernel
        want = told[EAGER_OUTPUTS.get(stack, "attentions")][layer].double()
        rows = real_rows(call.problem)
        if call.queries.keep is not None:
            rows = rows & call.queries.keep[:, None]
        weights = torch.where(rows[..., None], weights_of(call.problem), 0.0)
        torch.testing.assert_close(weights, torch.where(rows[..., None], want, 0.0), atol=1e-5, rtol=0)
        seen = real_rows(call.problem).transpose(1, 2)[..., None]
        out = torch.where(seen, output_of(call.problem), 0.0)
        torch.testing.assert_close(out, torch.where(seen, call.output.double(), 0.0), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "kernel"), [(n, k) for n, k, padding in RUNS if padding == "none"])
def test_the_projection_is_the_layer_fed_with_the_heads(name, kernel):
    family = FAMILIES[name]
    model, inputs = family.build(kernel), family.inputs()
    modules = dict(model.named_modules())
    made = {}
    for path, module in modules.items():
        if getattr(module, "weight", None) is not None and module.weight.ndim == 2:
            module.register_forward_hook(lambda m, a, out, path=path: made.setdefault(path, []).append(out))
    _, calls = run(model, inputs)
    assert len(calls) == sum(count for _, count in family.layers)
    for _, call in calls:
        parent = call.site.module.rpartition(".")[0]
        below = {"bert": f"{parent}.output.dense"}.get(name, f"{call.site.module}.{family.projection}")
        linear = modules[below]
        weight = call.projection.weight
        assert call.projection.reason == ""
        assert weight.data_ptr() == linear.weight.data_ptr()
        concatenated = call.output.flatten(2)
        got = concatenated @ weight.T + (0 if linear.bias is None else linear.bias)
        torch.testing.assert_close(got, made[below][call.site.repeat], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_the_residual_is_the_input_of_the_block(name):
    family = FAMILIES[name]
    model, inputs = family.build(family.kernels[0]), family.inputs()
    fed = {}
    for path, module in model.named_modules():
        if path.rpartition(".")[2].isdigit():
            module.register_forward_pre_hook(
                lambda m, args, kwargs, path=path: fed.setdefault(path, []).append((args or tuple(kwargs.values()))[0]),
                with_kwargs=True,
            )
    _, calls = run(model, inputs)
    for _, call in calls:
        parts = call.site.module.split(".")
        last = max(i for i, part in enumerate(parts) if part.isdigit())
        block = ".".join(parts[: last + 1])
        assert torch.equal(call.residual, fed[block][call.site.repeat])


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "albert", "mistral"])
def test_tokens_of_one_stack(name, padding):
    family = FAMILIES[name]
    inputs = family.inputs(padding)
    _, calls = run(family.build(), inputs)
    for _, call in calls:
        for tokens in (call.queries, call.keys):
            assert torch.equal(tokens.ids, inputs["input_ids"])
            if padding == "none":
                assert tokens.keep is None
            else:
                assert torch.equal(tokens.keep, inputs["attention_mask"].bool())


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_tokens_of_an_encoder_and_a_decoder(name):
    family = FAMILIES[name]
    inputs = family.inputs("left")
    _, calls = run(family.build(), inputs)
    source, target = inputs["input_ids"], inputs["decoder_input_ids"]
    for (stack, _), call in calls:
        queries, keys = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}[stack]
        assert torch.equal(call.queries.ids, queries)
        assert torch.equal(call.keys.ids, keys)
        assert (call.queries.keep is None) == (stack != "encoder")
        assert (call.keys.keep is None) == (stack == "decoder")
        if stack != "decoder":
            assert torch.equal(call.keys.keep, inputs["attention_mask"].bool())


def test_labels_make_the_decoders_tokens_known_too():
    family = FAMILIES["bart"]
    labels = family.inputs()["decoder_input_ids"]
    _, calls = run(family.build(), {"input_ids": family.inputs()["input_ids"], "labels": labels})
    decoder = [call for (stack, _), call in calls if stack == "decoder"]
    assert all(torch.equal(call.queries.ids[:, 1:], labels[:, :-1]) for call in decoder)


def test_sound_and_pictures_have_no_tokens():
    _, calls = run(FAMILIES["vit"].build(), FAMILIES["vit"].inputs())
    assert all(call.queries.ids is None and call.keys.keep is None for _, call in calls)
    inputs = FAMILIES["whisper"].inputs()
    _, calls = run(FAMILIES["whisper"].build(), inputs)
    for (stack, _), call in calls:
        assert (call.queries.ids is None) == (stack == "encoder")
        assert (call.keys.ids is None) == (stack != "decoder")
        assert call.problem.kv_len == (TARGET if stack == "decoder" else 10)


def test_a_decoder_reads_the_tokens_of_the_encoding_it_is_given():
    model, one, other = FAMILIES["t5"].build(), ids(2, LENGTH), ids(2, LENGTH)
    encodings, calls = [], []
    with torch.no_grad(), watching(model, calls.append):
        encodings = [model.get_encoder()(input_ids=each) for each in (one, other)]
        calls.clear()
        for encoding in encodings:
            model(encoder_outputs=encoding, decoder_input_ids=ids(2, TARGET))
        model(encoder_outputs=(encodings[0][0].clone(),), decoder_input_ids=ids(2, TARGET))
    told = [call.keys.ids for call in calls if call.site.cross]
    assert len(told) == 6
    assert all(torch.equal(each, one) for each in told[:2])
    assert all(torch.equal(each, other) for each in told[2:4])
    assert told[4:] == [None, None]


def test_pictures_as_long_as_the_text_beside_them_have_no_tokens():
    text = ENCODER | {"eos_token_id": 2}
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=PICTURE, projection_dim=8)).eval()
    words = ids(2, 17)
    _, calls = run(model, {"input_ids": words, "pixel_values": torch.randn(2, 3, 16, 16)})
    lengths = {stack: call.problem.q_len for (stack, _), call in calls}
    assert lengths == {"vision_model": 17, "text_model": 17}
    for (stack, _), call in calls:
        assert (call.queries.ids is None) == (stack == "vision_model")
        assert call.keys.ids is None or torch.equal(call.keys.ids, words)


def test_padding_is_read_off_a_4d_mask_where_there_is_no_other():
    family = FAMILIES["bert"]
    inputs = family.inputs()
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[0, -2:] = False
    inputs["attention_mask"] = keep[:, None, None].expand(2, 1, LENGTH, LENGTH)
    _, calls = run(family.build(), inputs)
    for _, call in calls:
        assert torch.equal(call.keys.keep, keep)
        assert torch.equal(call.queries.keep, keep)


def test_layers_of_albert_are_told_apart_by_call():
    model = FAMILIES["albert"].build()
    _, calls = run(model, FAMILIES["albert"].inputs())
    assert [(place, call.site.repeat) for place, call in calls] == [(("", n), n) for n in range(3)]
    assert len({call.site.module for _, call in calls}) == 1


def test_nan_weights_do_not_hide_the_projection():
    model = FAMILIES["gpt2"].build("eager")
    with torch.no_grad():
        model.transformer.wte.weight.fill_(torch.nan)
    _, calls = run(model, FAMILIES["gpt2"].inputs())
    assert all(call.projection.weight is not None for _, call in calls)


def test_a_call_is_told_before_the_next_one_begins():
    model = FAMILIES["bart"].build()
    events = []
    for path, module in model.named_modules():
        if path.endswith("_attn"):
            module.register_forward_pre_hook(lambda m, args, path=path: events.append(("begins", path)))
    with torch.no_grad(), watching(model, lambda call: events.append(("told", call.site.module))):
        model(**FAMILIES["bart"].inputs())
    assert [kind for kind, _ in events] == ["begins", "told"] * 6
    assert all(events[i][1] == events[i + 1][1] for i in range(0, 12, 2))
