from hypothesis import given
from hypothesis import strategies as st

from multihead.hooks import Site, addresses
from multihead.record import HeadAddress


def sites(*paths):
    return [Site(module=path.removesuffix("*"), cross=path.endswith("*")) for path in paths]


def told(*paths):
    return [f"{stack}:{layer}" for stack, layer in addresses(sites(*paths)).values()]


def test_one_stack_has_no_name():
    assert told("encoder.layer.0.attention.self", "encoder.layer.1.attention.self") == [":0", ":1"]


def test_layers_are_numbered_by_their_first_call():
    assert told("h.3.attn", "h.0.attn", "h.3.attn") == [":0", ":1"]


def test_encoder_decoder_and_cross():
    layer = "model.decoder.layers.0."
    found = told("model.encoder.layers.0.self_attn", f"{layer}self_attn", f"{layer}encoder_attn*")
    assert found == ["encoder:0", "decoder:0", "cross:0"]


def test_cross_attention_beside_one_stack():
    assert told("h.0.attn", "h.0.crossattention*", "h.1.attn", "h.1.crossattention*") == [
        ":0",
        "cross:0",
        ":1",
        "cross:1",
    ]


def test_two_towers_are_named_by_the_segment_that_parts_them():
    assert told(
        "model.text_model.encoder.layers.0.self_attn",
        "model.vision_model.encoder.layers.0.self_attn",
        "model.text_model.encoder.layers.1.self_attn",
    ) == ["text_model:0", "vision_model:0", "text_model:1"]


def test_levels_of_a_pyramid_are_one_stack():
    assert told("encoder.layers.0.blocks.0.attention", "encoder.layers.1.blocks.0.attention") == [":0", ":1"]


def test_names_become_words_an_address_can_hold():
    found = addresses(sites("2Tower-A.layers.0.attn", "_B.layers.0.attn"))
    for stack, layer in found.values():
        assert HeadAddress.parse(str(HeadAddress(stack, layer, 0))) == HeadAddress(stack, layer, 0)
    assert [stack for stack, _ in found.values()] == ["tower_a", "b"]


def test_repeats_of_one_module_have_addresses_of_their_own():
    shared = [Site(module="group.0.attention", repeat=n) for n in range(3)]
    assert list(addresses(shared).values()) == [("", 0), ("", 1), ("", 2)]


def test_a_stack_that_a_site_carries_is_kept():
    site = Site(module="text_model.layers.0.attn", stack="text_model")
    assert addresses([site]) == {site: ("text_model", 0)}


def test_no_sites_no_addresses():
    assert addresses([]) == {}


names = st.lists(st.sampled_from(["encoder", "decoder", "layers", "0", "1", "2", "Attn", "x_y", "7b"]), min_size=1)
any_site = st.builds(
    Site, module=names.map(".".join), repeat=st.integers(0, 2), cross=st.booleans(), stack=st.none() | st.just("a")
)


@given(st.lists(any_site, max_size=12))
def test_no_two_sites_share_an_address_and_every_stack_counts_from_zero(some):
    found = addresses(some)
    assert set(found) == set(some)
    assert len(set(found.values())) == len(found)
    for stack in {stack for stack, _ in found.values()}:
        layers = [layer for other, layer in found.values() if other == stack]
        assert sorted(layers) == list(range(len(layers)))
        assert HeadAddress.parse(str(HeadAddress(stack, 0, 0))).stack == stack
