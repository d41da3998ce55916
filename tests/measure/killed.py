"""A run in a process of its own, to be ended by force: `python killed.py FOLDER SEED`."""

import sys
import time
from pathlib import Path

import torch
import transformers

from multihead.measure import Batch, observe
from multihead.record import Document

LENGTHS = ((9, 7), (12,), (5, 5, 8), (11,))


def plan(seed):
    """A tiny model, its batches (a document in several chunks) and its documents, the same for the same seed."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    model = transformers.LlamaModel(config).eval()
    rows = [(d, torch.randint(5, 40, (1, n))) for d, lengths in enumerate(LENGTHS) for n in lengths]
    torch.set_rng_state(state)
    batches = [Batch(inputs={"input_ids": row}, document=(d,)) for d, row in rows]
    documents = [Document(name=f"d{i}", digest=f"{i}", tokens=sum(each)) for i, each in enumerate(LENGTHS)]
    return model, batches, documents


def main():
    torch.set_num_threads(1)
    folder, seed, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    model, batches, documents = plan(seed)
    (folder / "begun").touch()

    def wait(_):
        time.sleep(pause)

    observe(model, batches, documents=documents, journal=folder / "journal", on_batch=wait)
    (folder / "done").touch()


if __name__ == "__main__":
    main()
