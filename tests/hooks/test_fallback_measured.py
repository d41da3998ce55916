"""Statistics of heads whose attention has no seam are those of the weights the model itself returns."""

import pytest
import torch

from hooks.tail import examine
from hooks.tail_fallback import FALLBACK
from multihead.measure import Batch, observe
from multihead.record import Document


@pytest.mark.parametrize("name", ["deberta-v2", "bloom", "xlnet", "mpnet", "openai-gpt", "falcon", "fsmt", "pvt"])
def test_entropy_and_previous_token(name):
    tail = FALLBACK[name]
    outcome, inputs = examine(tail), tail.inputs()
    documents = [Document(name=str(n), digest="", tokens=9) for n in range(2)]
    record = observe(outcome.model, [Batch(inputs=inputs, document=(0, 1))], documents=documents)
    twin = tail.build("eager")
    twin.load_state_dict(outcome.model.state_dict())
    with torch.no_grad():
        told = twin(**inputs, output_attentions=True)
    stacks = (
        {"": "attentions"}
        if "encoder_attentions" not in told
        else {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    )
    checked = 0
    for stack, key in stacks.items():
        for layer, weights in enumerate(told[key]):
            rows = (weights > 0).sum(-1) >= 2
            entropy = torch.special.entr(weights.double()).sum(-1)
            previous = weights.double().diagonal(-1, -2, -1)
            for head in range(weights.shape[1]):
                found = record[f"{stack}.L{layer}.H{head}".lstrip(".")]
                want = (entropy * rows)[:, head].sum(-1) / rows[:, head].sum(-1)
                assert found.entropy == pytest.approx(float(want.mean()), abs=1e-5)
                if weights.shape[-1] == weights.shape[-2]:
                    shown = previous[:, head][:, (0 if rows[0, 0, 1] else 1) :]
                    assert found.previous == pytest.approx(float(shown.mean()), abs=1e-5)
                checked += 1
    assert checked == len(record.heads)
