"""Runs in processes of their own, ended by force at random moments: `python killed.py FOLDER SEED PAUSE KILLS`."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import transformers

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
    model, batches, documents = plan(seed)
    (folder / "begun").touch()

    def wait(_):
        time.sleep(pause)

    observe(model, batches, documents=documents, run=Run(journal=folder / "journal", on_batch=wait))


def started(folder, seed, pause):
    """Start the run in a fork, which has all that is slow to import; its process, once it is at work."""
    (folder / "begun").unlink(missing_ok=True)
    process = os.fork()
    if not process:
        failed = 1
        try:
            run(folder, seed, pause)
            failed = 0
        finally:
            os._exit(failed)
    while not (folder / "begun").exists():
        time.sleep(0.01)
    return process


def main():
    """Start the run again and again and kill it; print how often it was still running."""
    torch.set_num_threads(1)
    folder, seed, pause, kills = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    random.seed(seed)
    met = 0
    for _ in range(kills):
        process = started(folder, seed, pause)
        time.sleep(random.uniform(0.0, 0.7))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        met += os.WIFSIGNALED(status)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit("the run failed")
    print(met)  # noqa: T201 - read by the test that started this process


if __name__ == "__main__":
    main()
