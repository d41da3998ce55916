"""Runs in processes of their own, ended by force at random moments."""

import random
import signal
import time

import torch
import transformers

from forked import forked
from multihead.measure import Batch, Run, observe
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


def run(folder, seed, pause):
    """The run, as far as it gets."""
    torch.set_num_threads(1)
    model, batches, documents = plan(seed)
    (folder / "begun").touch()

    def wait(_):
        time.sleep(pause)

    observe(model, batches, documents=documents, run=Run(journal=folder / "journal", on_batch=wait))


def ended_by_force(folder, seed, *, kills, pause=0.15):
    """Start the run again and again and kill it at random moments; how often it was still running."""
    met = 0
    for _ in range(kills):
        (folder / "begun").unlink(missing_ok=True)
        with forked(run, folder, seed, pause, folder=folder) as process:
            while process.exitcode is None and not (folder / "begun").exists():
                time.sleep(0.01)
            time.sleep(random.uniform(0.0, 0.7))
        met += process.exitcode == -signal.SIGKILL
        assert process.exitcode in (0, -signal.SIGKILL), (folder / "err.txt").read_text()
    return met
