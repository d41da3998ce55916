"""The samples torch tests itself with, which come in its wheel, and how it is kept from changing this process."""

import os
import warnings
from contextlib import contextmanager
from unittest import mock

import hypothesis
import torch


@contextmanager
def _unchanged():
    """torch.testing._internal freezes torch.backends and sets a profile of hypothesis and a folder, all on import."""
    profile = hypothesis.settings.get_current_profile_name()
    allowed = torch.backends.__allow_nonbracketed_mutation_flag
    with mock.patch.dict(os.environ), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.backends.__allow_nonbracketed_mutation_flag = allowed
            hypothesis.settings.load_profile(profile)


def module_inputs(dtype, *, training):
    """The 64 inputs of nn.MultiheadAttention: how it is built, what it is given."""
    with _unchanged():
        from torch.testing._internal.common_modules import module_db
    (info,) = [info for info in module_db if info.module_cls is torch.nn.MultiheadAttention]
    return info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=training, training=training)


def operator_inputs(name, dtype):
    """The samples of a function of torch.nn.functional."""
    with _unchanged():
        from torch.testing._internal.common_methods_invocations import op_db
    (info,) = [info for info in op_db if info.name == f"nn.functional.{name}"]
    return list(info.sample_inputs("cpu", dtype, requires_grad=False))
