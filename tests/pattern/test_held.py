import torch

from multihead.pattern.held import Held


def test_values_move_to_a_device_once():
    held = Held(torch.arange(4), what="ids")
    assert held.on("cpu") is held.on("cpu")
    assert held.on("meta").device.type == "meta"
    assert held.on("meta") is held.on("meta")
    assert held.copy().equal(torch.arange(4))


def test_every_value_counts_for_the_content():
    values = torch.randint(100, (3, 50))
    digest = Held(values, what="ids").digest
    assert len(digest) == 16
    for place in torch.randint(150, (20,)).tolist():
        other = values.clone()
        other.view(-1)[place] += 1
        assert Held(other, what="ids").digest != digest
    assert Held(values.T.contiguous().T, what="ids").digest == digest
