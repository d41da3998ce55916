"""What users of tools that draw attention asked for in public, one test a complaint: see `test_public_complaints`."""

import re
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest
import torch

import multihead as mh
from hooks.families import FAMILIES
from journeys.watched import eager, letters_report, seen_calls, shut_in, watched_record, weights_of
from multihead.report import render_page


class Links(HTMLParser):
    """Whatever a page could load: attributes with an address in them."""

    def __init__(self, page):
        super().__init__()
        self.found, self.policy = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        self.found += [told[name] for name in ("src", "href", "srcset", "action", "data") if told.get(name)]
        if told.get("http-equiv", "").lower() == "content-security-policy":
            self.policy = told["content"]


@pytest.fixture(scope="module")
def report():
    return letters_report(64)


def test_bertviz_82_a_512_token_text():
    short, long = (render_page(letters_report(length).record) for length in (64, 512))
    limit = 150_000 + 5_500 * 6
    assert len(long.encode()) < limit
    # 64 times as many pairs of tokens, and the page is as large as before.
    assert abs(len(long) - len(short)) < 0.1 * len(short)


def test_bertviz_131_every_token_looks_at_the_first():
    """How much of a head's weight the first token gets is a number, the same as the matrices give."""
    family = FAMILIES["llama"]
    model, inputs = family.build(), family.inputs()
    record = watched_record(model, inputs)
    matrices = torch.cat(eager(family, model, inputs).attentions, 1)
    want = matrices[:, :, 1:, 0].mean((0, 2))  # the first row sees one key and has no choice
    np.testing.assert_allclose(record.value("first_token"), want, rtol=1e-5)


def test_bertviz_128_llama_with_grouped_heads():
    family = FAMILIES["llama"]
    record = watched_record(family.build(), family.inputs())
    assert [str(address) for address in record.heads] == [f"L{layer}.H{head}" for layer in (0, 1) for head in range(4)]
    assert record.kv_heads == (0, 0, 1, 1) * 2


def test_bertviz_130_queries_and_keys_of_llama():
    """The neuron view multiplies q and k of a pair entry by entry: both are there, as the model used them."""
    family = FAMILIES["llama"]
    model, inputs = family.build(), family.inputs()
    calls, _ = seen_calls(model, inputs)
    problem = calls[1].problem
    q, k = problem.q[0, 3, 7], problem.k[0, 1]
    weights = torch.softmax((q * k[:8]).sum(-1) * problem.scale, -1)
    want = eager(family, model, inputs).attentions[1][0, 3, 7, :8]
    torch.testing.assert_close(weights, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_bertviz_72_encoder_decoder_and_cross_attention(name):
    family = FAMILIES[name]
    model, inputs = family.build(), family.inputs()
    record = watched_record(model, inputs)
    outputs = eager(family, model, inputs)
    matrices = {
        "encoder": outputs.encoder_attentions,
        "decoder": outputs.decoder_attentions,
        "cross": outputs.cross_attentions,
    }
    entropy = record.value("entropy")
    for stack, layers in matrices.items():
        weights = torch.cat(layers, 1)[:, :, int(stack == "decoder") :].double()
        want = torch.special.entr(weights).sum(-1).mean((0, 2))
        got = [value for address, value in zip(record.heads, entropy, strict=True) if address.stack == stack]
        np.testing.assert_allclose(got, want, rtol=1e-4)


def test_bertviz_118_a_vision_transformer_has_no_tokens():
    family = FAMILIES["vit"]
    model, inputs = family.build(), family.inputs()
    record = watched_record(model, inputs)
    assert record.documents[0].tokens == 17  # 4 x 4 patches and [CLS]
    matrices = torch.cat(eager(family, model, inputs).attentions, 1)
    np.testing.assert_allclose(record.value("first_token"), matrices[..., 0].mean((0, 2)), rtol=1e-5)


def test_bertviz_41_html_from_a_server_without_a_screen(report, tmp_path, monkeypatch):
    shut_in(monkeypatch)
    monkeypatch.delenv("DISPLAY", raising=False)
    page = report.save(tmp_path / "out")
    assert page.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")


def test_bertviz_90_the_page_is_a_string_for_any_framework(report):
    assert isinstance(render_page(report.record), str)


def test_bertviz_13_the_map_of_one_head_as_numbers(report):
    """What a picture of one head is drawn from, for a plot of one's own."""
    picture = report.statistics["L1.H2"].pooled_map
    assert picture.shape == (32, 32)
    np.testing.assert_allclose(picture.sum(1), 1.0, rtol=1e-4)


def test_bertviz_53_no_network_and_no_loader(report):
    page = render_page(report.record)
    links = Links(page)
    assert "default-src 'none'" in links.policy
    assert [link for link in links.found if not link.startswith(("#", "data:"))] == []
    assert not re.search(r"\brequire\s*\(|\bimport\s*\(|@import|url\((?!['\"]?(?:data:|#))", page)


def test_bertviz_23_numbers_and_not_only_pictures(report):
    table = report.table()
    assert isinstance(table, pa.Table)
    assert table.num_rows == 6
    row = table.to_pylist()[4]
    assert row["head"] == "L1.H1"
    assert row["entropy"] == report.statistics["L1.H1"].entropy


def test_bertviz_23_the_weight_between_two_tokens():
    family = FAMILIES["bert"]
    model, inputs = family.build(), family.inputs()
    calls, _ = seen_calls(model, inputs)
    got = weights_of(calls[1].problem, rows=[5], heads=[2])
    want = eager(family, model, inputs).attentions[1][:, 2:3, 5:6]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_inspectus_11_saves_html(report, tmp_path):
    path = report.save(tmp_path / "here")
    assert path == tmp_path / "here" / "index.html"
    assert path.stat().st_size > 10_000


def test_inspectus_15_saves_the_map_behind_the_picture(report, tmp_path):
    report.save(tmp_path)
    again = mh.load_checkup(tmp_path)
    np.testing.assert_array_equal(again.statistics["L0.H1"].pooled_map, report.statistics["L0.H1"].pooled_map)


def test_circuitsvis_49_size_of_page(report, monkeypatch):
    """Nothing is bundled or asked for when a page is made, and the script is in it once."""
    shut_in(monkeypatch)
    page = render_page(report.record)
    assert render_page(report.record) == page
    assert len(page.encode()) < 150_000 + 5_500 * 6
    scripts = re.findall(r"<script(?![^>]*json)[^>]*>", page)
    assert len(scripts) == 1
