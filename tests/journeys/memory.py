"""What watching a long context takes, in a process of its own."""

import json
import re
from pathlib import Path

import torch
import transformers as hf

import multihead as mh


def measure_memory(folder):
    """Write down how far watching a call of 4096 tokens makes memory grow, and the size of the model's buffers."""
    torch.set_num_threads(1)
    config = hf.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1 << 20,
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    model = hf.LlamaModel(config).eval()

    def resident(what):
        return int(re.search(what + r":\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024

    def grown(length):
        tokens = torch.randint(50, (1, length))
        # Linux forgets the highest mark when 5 is written here.
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        with torch.no_grad(), mh.watch(model) as watched:
            model(input_ids=tokens)
        watched.statistics()
        return resident("VmHWM") - before

    grown(64)
    told = {"buffers": sum(b.numel() for b in model.buffers()), "grown": grown(4096)}
    (folder / "told.json").write_text(json.dumps(told))
