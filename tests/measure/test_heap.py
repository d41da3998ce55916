"""Memory that a run freed does not stay with it."""

import os
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from multihead.measure import Batch, Run, heap, observe
from multihead.record import Document

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="other C libraries keep no holes, or tell nothing of it"
)


def resident():
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def holes():
    """Freed blocks between small ones that stay, 160 MB in all; what stays."""
    torch.ones(7_000_000)  # glibc takes blocks of up to this size from its heap once one was freed
    kept, freed = [], []
    for _ in range(40):
        freed.append(torch.ones(1_000_000))
        kept.append(torch.ones(10_000))
    return kept


def test_holes_are_given_back(monkeypatch):
    ours = heap.Heap()
    kept = holes()
    before = resident()
    ours.give_back()
    assert resident() > before - 20, "no time has passed: it would cost more than it saves"
    monkeypatch.setattr(heap, "INTERVAL", 0.0)
    ours.give_back()
    assert resident() < before - 50
    assert len(kept) == 40


@pytest.mark.slow
def test_a_long_run_holds_no_more_than_a_short_one(monkeypatch):
    monkeypatch.setattr(heap, "INTERVAL", 0.0)
    config = LlamaConfig(
        hidden_size=72, num_attention_heads=9, num_key_value_heads=3, num_hidden_layers=30, intermediate_size=32,
        vocab_size=300,
    )  # fmt: skip
    held = []
    batches = [Batch(inputs={"input_ids": torch.randint(5, 300, (1, 1024))}, document=(0,)) for _ in range(5)]
    run = Run(on_batch=lambda _: held.append(resident()))
    observe(LlamaForCausalLM(config), batches, documents=[Document(name="a", digest="a", tokens=5120)], run=run)
    assert held[-1] - held[0] < 60, held
