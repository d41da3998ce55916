"""Watch a small model, and ask transformers' own eager attention what is right."""

import socket
import subprocess
import webbrowser

import torch

import multihead as mh
from hooks.families import twin
from multihead.hooks import watching
from workflow.fakes import LETTERS, LetterTokenizer, bert


def letters(count):
    """A random text of so many letters, each one token."""
    return "".join(LETTERS[i] for i in torch.randint(26, (count,)).tolist())


def letters_report(length, *, room=512):
    """A checkup of a small random encoder on one text, read in one piece."""
    return mh.checkup(bert(length=room), LetterTokenizer(), [letters(length - 2)], max_length=length, repeats=0)


def eager(family, model, inputs):
    """Outputs of the same weights under transformers' eager attention, matrices included."""
    with torch.no_grad():
        return twin(family, model)(**inputs, output_attentions=True)


def watched_record(model, inputs, **options):
    with torch.no_grad(), mh.watch(model, **options) as watched:
        model(**inputs)
    return watched.statistics()


def seen_calls(model, inputs):
    calls = []
    with torch.no_grad(), watching(model, calls.append):
        output = model(**inputs)
    return calls, output


def weights_of(problem, **chosen):
    """Any slice of the weights of a call, by the public function."""
    attended = mh.attention_lse(
        problem.q,
        problem.k,
        problem.v,
        mask=problem.mask,
        bias=problem.bias,
        scale=problem.scale,
        softcap=problem.softcap,
        normaliser=problem.normaliser,
        q_offset=problem.q_offset,
    )
    return attended.weights(**chosen)


def shut_in(monkeypatch):
    """No network, no other program, no browser."""

    def refuse(*given, **named):
        raise AssertionError("went out")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(webbrowser, "open", refuse)
