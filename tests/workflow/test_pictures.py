import io

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from torch import nn

from hooks.families import PICTURE, randomise
from interop.test_facts import SEERS, TEXT
from multihead.corpus import Picture, is_installed, read_images
from multihead.error import MultiheadError
from multihead.hooks import watching
from multihead.interop import picture_facts, picture_part, quiet_transformers
from multihead.measure import observe
from multihead.workflow import open_model
from multihead.workflow.pictures import Layout, encode_pictures, frame_picture, patch_targets

# Tokens before the patches: CLS and its like, registers.
BEFORE = {"vit": (1, 0), "deit": (2, 0), "beit": (1, 0), "dinov2": (1, 0), "registers": (1, 3), "clip_vision": (1, 0)}
BEFORE |= {"siglip_vision": (0, 0), "clip": (1, 0), "reader": (1, 0)}


def picture(height=40, width=30, name="p"):
    return Picture(name, torch.randint(0, 256, (height, width, 3), dtype=torch.uint8))


def built(name):
    with quiet_transformers():
        model = SEERS[name]()
    randomise(model)
    return model.eval()


@pytest.mark.parametrize("name", BEFORE)
def test_places_are_those_the_attention_has(name):
    model = built(name)
    encoded = encode_pictures(model, picture_facts(model), [picture(name="a"), picture(17, 90, name="b")])
    special, registers = BEFORE[name]
    assert encoded.model is picture_part(model)
    assert encoded.classes.names == ("special", "register", "patch")
    assert encoded.remarks == ()
    assert [(d.name, d.tokens) for d in encoded.documents] == [(n, special + registers + 16) for n in "ab"]
    assert [b.document for b in encoded.batches] == [(0,), (1,)]
    seen = []
    for batch in encoded.batches:
        assert batch.classes["pixel_values"].tolist() == [[0] * special + [1] * registers + [2] * 16]
        assert batch.spans[0].start == special + registers
        with torch.no_grad(), watching(encoded.model, lambda call: seen.append(call.problem.kv_len)):
            encoded.model(**batch.inputs)
    assert set(seen) == {special + registers + 16}


@pytest.mark.parametrize("kind", ["ViT", "Siglip", "CLIP", "Bit", "DeiT", "Beit"])
@pytest.mark.parametrize("size", [(40, 30), (300, 17), (9, 9), (224, 224)])
def test_pixels_are_those_of_the_models_own_processor(kind, size, tmp_path):
    model = hf.ViTModel(hf.ViTConfig(**(PICTURE | {"image_size": 32})))
    sizes = {
        "CLIP": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
        "Bit": {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}},
        "DeiT": {"size": {"height": 36, "width": 36}, "crop_size": {"height": 32, "width": 32}},
    }
    processor = getattr(hf, f"{kind}ImageProcessorPil")(**sizes.get(kind, {"size": {"height": 32, "width": 32}}))
    with quiet_transformers():
        processor.save_pretrained(tmp_path)
    facts = picture_facts(model, tmp_path)
    given = picture(*size)
    ours = encode_pictures(model, facts, [given]).batches[0].inputs["pixel_values"]
    theirs = processor(Image.fromarray(given.pixels.numpy()), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("size", [(3, 5), (4, 9), (20, 20)])
def test_what_is_smaller_than_the_model_reads_lies_in_the_middle_of_black(size, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"do_resize": false}')
    facts = picture_facts(built("vit"), tmp_path)
    given = picture(*size)
    framed = frame_picture(given.pixels, facts).numpy().astype(int)
    assert framed.shape == (16, 16, 3)
    height, width = (min(16, side) for side in size)
    top, left = (-(-(16 - side) // 2) if side < 16 else 0 for side in size)
    cut = [max(side - 16, 0) // 2 for side in size]
    expected = np.zeros((16, 16, 3), int)
    expected[top : top + height, left : left + width] = given.pixels[
        cut[0] : cut[0] + height, cut[1] : cut[1] + width
    ].numpy()
    assert np.array_equal(framed, expected)


@pytest.mark.parametrize(
    ("special", "registers", "rows", "columns"), [(1, 0, 4, 4), (1, 3, 2, 5), (0, 0, 1, 3), (2, 0, 3, 1)]
)
def test_targets_are_rows_columns_and_neighbours(special, registers, rows, columns):
    layout = Layout(special=special, registers=registers, rows=rows, columns=columns)
    targets = patch_targets(layout)
    places = layout.places
    where = [None] * (special + registers) + [(r, c) for r in range(rows) for c in range(columns)]
    rules = {
        "same_row": lambda a, b: a[0] == b[0],
        "same_column": lambda a, b: a[1] == b[1],
        "neighbour": lambda a, b: abs(a[0] - b[0]) <= 1 and abs(a[1] - b[1]) <= 1,
    }
    assert targets.keys() == rules.keys()
    for name, rule in rules.items():
        expected = [[a is not None and b is not None and a != b and rule(a, b) for b in where] for a in where]
        assert targets[name].mask(places, places)[0, 0].tolist() == expected


def test_spans_cover_the_patches_and_show_what_the_model_sees():
    facts = picture_facts(built("vit"))
    encoded = encode_pictures(built("vit"), facts, [picture(name=str(n)) for n in range(6)])
    assert [len(b.spans) for b in encoded.batches] == [1, 1, 1, 1, 0, 0]
    span = encoded.batches[0].spans[0]
    assert (span.row, span.side, span.grid, span.before) == (0, "pixel_values", (4, 4), 0)
    assert span.units == tuple(range(16))
    assert (span.texts[0], span.texts[6]) == ("r1 c1", "r2 c3")
    with Image.open(io.BytesIO(span.picture)) as shown:
        assert shown.size == (16, 16)


def test_fine_grids_are_taken_together():
    model = hf.ViTModel(hf.ViTConfig(**(PICTURE | {"image_size": 68, "patch_size": 4})))
    span = encode_pictures(model.eval(), picture_facts(model), [picture()]).batches[0].spans[0]
    assert span.grid == (6, 6)
    assert len(span.units) == 17 * 17
    assert len(span.texts) == 36
    units = np.array(span.units).reshape(17, 17)
    assert units[:3, :3].tolist() == [[0] * 3] * 3
    assert (units[0, 3], units[3, 0], units[16, 16]) == (1, 6, 35)


def test_windows_have_no_patches_to_be_told():
    model = built("swin")
    encoded = encode_pictures(model, picture_facts(model), [picture()])
    assert encoded.classes is None
    assert encoded.targets == {}
    assert encoded.batches[0].classes is None
    assert encoded.batches[0].spans == ()
    assert "windows" in encoded.remarks[0]
    assert observe(model, encoded.batches, documents=encoded.documents).value("entropy").min() > 0


def test_a_head_made_to_look_along_its_row_is_found():
    model = hf.ViTModel(hf.ViTConfig(**(PICTURE | {"num_hidden_layers": 1, "num_attention_heads": 2}))).eval()
    randomise(model)
    width = 16
    with torch.no_grad():
        # Every place carries its row and nothing else; head 0 asks for its own row and head 1 for nothing.
        model.embeddings.patch_embeddings.projection.weight.zero_()
        model.embeddings.patch_embeddings.projection.bias.zero_()
        model.embeddings.cls_token.zero_()
        rows = torch.zeros(17, 32)
        rows[1 + torch.arange(16), torch.arange(16) // 4] = 1
        model.embeddings.position_embeddings.copy_(rows[None])
        layer = next(m for m in model.modules() if hasattr(m, "q_proj"))
        norm = next(m for name, m in model.named_modules() if name.endswith("layernorm_before"))
        norm.weight.fill_(1)
        norm.bias.zero_()
        for linear in (layer.q_proj, layer.k_proj):
            linear.bias.zero_()
            linear.weight.zero_()
            linear.weight[:width, :width].copy_(4 * torch.eye(width))
    encoded = encode_pictures(model, picture_facts(model), [picture()])
    measured = observe(encoded.model, encoded.batches, documents=encoded.documents, targets=encoded.targets)
    row, column = measured.value("same_row"), measured.value("same_column")
    # Of 17 places 3 are others of the same row; a fourth is the patch itself.
    assert row[0] > 0.7
    assert row[1] == pytest.approx(3 / 17)
    assert column[0] < 0.05


def test_complaints():
    model = built("vit")
    facts = picture_facts(model)
    with pytest.raises(MultiheadError, match="got: 0 pictures for ViTModel"):
        encode_pictures(model, facts, [])
    with pytest.raises(MultiheadError, match="got: 1 pictures for Linear"):
        encode_pictures(nn.Linear(2, 2), facts, [picture()])
    large = picture_facts(hf.ViTModel(hf.ViTConfig(**(PICTURE | {"image_size": 32}))))
    with pytest.raises(MultiheadError, match="to read a picture of 32 x 32 pixels\n  got: ValueError"):
        encode_pictures(model, large, [picture()])


def test_flags_are_put_back_and_half_precision_is_fed_as_such():
    model = built("vit").bfloat16()
    model.train()
    encoded = encode_pictures(model, picture_facts(model), [picture()])
    assert model.training
    assert encoded.batches[0].inputs["pixel_values"].dtype == torch.bfloat16


def test_the_text_side_of_a_pair_is_left_alone():
    model = hf.CLIPModel(hf.CLIPConfig(text_config=TEXT, vision_config=PICTURE)).eval()
    encoded = encode_pictures(model, picture_facts(model), [picture()])
    assert type(encoded.model).__name__.startswith("CLIPVision")


def test_dinov2_sees_pictures(tmp_path):
    if not is_installed("dinov2"):
        pytest.skip("not installed: multihead models --get dinov2")
    y, x = np.mgrid[0:240, 0:320]
    for name, inside in (("disc", (x - 160) ** 2 + (y - 120) ** 2 < 60**2), ("bars", x % 40 < 20)):
        pixels = np.where(inside[..., None], (200, 60, 30), (230, 230, 210)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    opened = open_model("dinov2")
    assert opened.reads == "images"
    encoded = encode_pictures(opened.model, opened.pictures, read_images(tmp_path))
    assert [(d.name, d.tokens) for d in encoded.documents] == [("bars.png", 257), ("disc.png", 257)]
    assert all(len(b.spans[0].picture) <= 12_000 for b in encoded.batches)
    measured = observe(encoded.model, encoded.batches, documents=encoded.documents, targets=encoded.targets)
    # Each of these has a head of its own in DINOv2; spread evenly the weight would be 15/257, 15/257 and 8/257.
    assert all(measured.value(name).max() > 0.4 for name in ("same_row", "same_column", "neighbour"))
