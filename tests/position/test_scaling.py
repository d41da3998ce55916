"""Scaled rotary frequencies against transformers' and against their definitions."""

import math

import pytest
import torch

from multihead.error import MultiheadError
from multihead.position import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    Rotary,
    YaRN,
)
from multihead.position.scaling import plain_frequencies

HEADS, HEAD_DIM, LONGEST = 4, 48, 4096
DIVISORS = tuple(1.0 + 0.37 * k for k in range(HEAD_DIM // 2))
KINDS = {
    "linear": {"factor": 3.5},
    "dynamic": {"factor": 2.5},
    "yarn": {"factor": 16.0, "original_max_position_embeddings": 256},
    "yarn by ratio": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 512},
    "yarn, betas": {"factor": 4.0, "beta_fast": 20.0, "beta_slow": 2.0, "original_max_position_embeddings": 300},
    "yarn, attention factor": {"factor": 4.0, "attention_factor": 0.8, "original_max_position_embeddings": 256},
    "yarn, DeepSeek": {"factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.1, "original_max_position_embeddings": 256},
    "yarn, GPT-OSS": {"factor": 32.0, "truncate": False, "original_max_position_embeddings": 256},
    "yarn, beyond the last pair": {
        "factor": 4.0,
        "beta_fast": 400.0,
        "rope_theta": 100.0,
        "original_max_position_embeddings": 100_000,
    },
    "longrope": {"short_factor": [1.0] * 24, "long_factor": list(DIVISORS), "original_max_position_embeddings": 1024},
    "longrope, factors": {
        "short_factor": list(DIVISORS),
        "long_factor": list(DIVISORS[::-1]),
        "factor": 8.0,
        "attention_factor": 1.3,
        "original_max_position_embeddings": 1024,
    },
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "proportional": {"partial_rotary_factor": 0.25},
    "proportional, stretched": {"partial_rotary_factor": 0.3, "factor": 2.0},
    "linear, partial": {"factor": 2.0, "partial_rotary_factor": 0.5},
    "yarn, partial": {"factor": 16.0, "original_max_position_embeddings": 256, "partial_rotary_factor": 0.25},
}


def configured(kind):
    llama = pytest.importorskip("transformers.models.llama.configuration_llama", reason="it is the oracle")
    parameters = {"rope_type": kind.split(",")[0].split()[0], "rope_theta": 50000.0} | KINDS[kind]
    return llama.LlamaConfig(
        hidden_size=HEADS * HEAD_DIM,
        num_attention_heads=HEADS,
        max_position_embeddings=LONGEST,
        rope_parameters=parameters,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_and_factor_of_transformers(kind):
    utils = pytest.importorskip("transformers.modeling_rope_utils", reason="it is the oracle")
    config = configured(kind)
    rotary = Rotary.from_config(config.to_dict())
    for length in (None, 17, 1024, 1025, LONGEST, 3 * LONGEST):
        theirs, factor = utils.ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, None, seq_len=length)
        assert torch.equal(rotary.inverse_frequencies(HEAD_DIM, length=length), theirs)
        assert rotary.factor == pytest.approx(factor, rel=1e-14)


def test_every_kind_of_transformers_is_covered():
    utils = pytest.importorskip("transformers.modeling_rope_utils", reason="it is the oracle")
    assert {kind.split(",")[0].split()[0] for kind in KINDS} == set(utils.ROPE_INIT_FUNCTIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_cos_and_sin_of_transformers(kind):
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama", reason="it is the oracle")
    config = configured(kind)
    rotary = Rotary.from_config(config.to_dict())
    positions = torch.tensor([[0, 1, 7, 100, 1023]])
    # What a model's own module says, which changes frequencies by the length it sees.
    for last in (1023, 1024, 4095, 5000):
        positions[0, -1] = last
        theirs = modeling.LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
        rotation = rotary.rotation(positions, HEAD_DIM)
        half = rotation.cos.shape[-1] // 2
        # Where the length is seen, the base is computed in float32 here: its last digit, times the position.
        within = 1e-6 * last if kind == "dynamic" else 0.0
        assert torch.allclose(rotation.cos[:, 0], theirs[0], rtol=0, atol=within)
        assert torch.allclose(rotation.sin[:, 0, :, half:], theirs[1][..., half:], rtol=0, atol=within)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "longrope", "llama3", "proportional"])
def test_double_precision_is_not_rounded(kind):
    rotary = Rotary.from_config(configured(kind).to_dict())
    fine = rotary.inverse_frequencies(HEAD_DIM, length=9000, dtype=torch.float64)
    coarse = rotary.inverse_frequencies(HEAD_DIM, length=9000)
    assert torch.allclose(fine.float(), coarse, rtol=1e-5, atol=0)
    assert (fine.float().double() != fine).any()


def test_the_softmax_scale_of_deepseek():
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3", reason="it is the oracle")
    parameters = {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.9, "rope_theta": 10000.0}
    rotary = Rotary.from_config({"rope_scaling": parameters | {"original_max_position_embeddings": 4096}})
    assert 0.125 * rotary.score_factor == pytest.approx(modeling.yarn_apply_mscale(parameters, 0.125), rel=1e-14)
    assert YaRN(40.0, 4096).score_factor == 1.0 != rotary.score_factor
    assert YaRN(1.0, 4096).amplitude == 1.0


def test_lengths_of_sequences():
    for scaling in (DynamicNTK(3.0, 10), LongRoPE((1.0,) * 4, (2.0, 3.0, 4.0, 5.0), 10)):
        lengths = torch.tensor([4, 10, 11, 50])
        each = scaling.frequencies(100.0, 8, length=lengths, dtype=torch.float64)
        assert each.shape == (4, 4)
        for row, length in zip(each, lengths.tolist(), strict=True):
            one = scaling.frequencies(100.0, 8, length=length, dtype=torch.float64)
            assert torch.allclose(row, one, rtol=1e-13, atol=0)
        assert torch.equal(each[0], scaling.frequencies(100.0, 8, dtype=torch.float64))


def test_ntk_stretches_the_slowest_pair_and_leaves_the_fastest():
    ours = NTK(4.0).frequencies(1000.0, 16, dtype=torch.float64)
    plain = 1000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    assert ours[0] == plain[0] == 1
    assert ours[-1].item() == pytest.approx(plain[-1].item() / 4, rel=1e-12)
    assert torch.allclose(ours, (1000.0 * 4.0 ** (16 / 14)) ** (-torch.arange(0, 16, 2).double() / 16), rtol=1e-12)


def test_dynamic_ntk_is_ntk_of_what_is_needed():
    length, trained, factor = 700, 256, 2.0
    needed = factor * length / trained - (factor - 1)
    ours = DynamicNTK(factor, trained).frequencies(1000.0, 16, length=length)
    assert torch.equal(ours, NTK(needed).frequencies(1000.0, 16))
    assert torch.equal(DynamicNTK(factor, trained).frequencies(1000.0, 16), plain_frequencies(1000.0, 16))


def test_yarn_by_its_definition():
    base, dim, factor, trained, fast, slow = 500.0, 32, 4.0, 200, 9.0, 1.5
    ours = YaRN(factor, trained, beta_fast=fast, beta_slow=slow, truncate=False).frequencies(
        base, dim, dtype=torch.float64
    )
    pair = [dim / 2 * math.log(trained / (2 * math.pi * turns)) / math.log(base) for turns in (fast, slow)]
    for k in range(dim // 2):
        plain = base ** (-2 * k / dim)
        share = min(max((k - pair[0]) / (pair[1] - pair[0]), 0.0), 1.0)
        assert ours[k].item() == pytest.approx(share * plain / factor + (1 - share) * plain, rel=1e-12)
    turns = trained / (2 * math.pi / (base ** (-torch.arange(0, dim, 2).double() / dim)))
    assert torch.equal(ours[turns >= fast], plain_frequencies(base, dim, dtype=torch.float64)[turns >= fast])


def test_a_line_of_no_length_is_a_step():
    # Both ends of the line fall on the first pair: no division by 0.
    ours = YaRN(2.0, 3, beta_fast=4.0, beta_slow=3.0).frequencies(10000.0, 8)
    assert torch.isfinite(ours).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: Linear(0.25),
            r"Linear with a factor of at .*\n  got: factor=0.25\n  fix: .*inverse, here 4",
        ),
        (lambda: Linear(-1.0), r"got: factor=-1.0\n  fix: pass a factor >= 1; where .* its inverse$"),
        (lambda: NTK(math.nan), r"NTK with a factor.*\n  got: factor=nan"),
        (lambda: DynamicNTK(0.0, 8), r"DynamicNTK with a factor"),
        (
            lambda: DynamicNTK(2.0, 0),
            r"DynamicNTK with the number of positions .*, at least 1\n  got: trained_length=0\n  fix: pass the",
        ),
        (
            lambda: Proportional(0.0),
            r"Proportional with the share .*\n  got: share=0.0\n  fix: pass the",
        ),
        (lambda: Proportional(1.5), r"got: share=1.5"),
        (lambda: Proportional(0.5, 0.5), r"Proportional with a factor"),
        (lambda: YaRN(0.5, 64), r"YaRN with a factor"),
        (lambda: YaRN(2.0, 0), r"YaRN with the number of positions"),
        (
            lambda: YaRN(2.0, 64, beta_fast=1.0, beta_slow=32.0),
            r"YaRN with 0 < beta_slow < beta_fast\n  got: beta_slow=32.0, beta_fast=1.0\n  fix: pass the",
        ),
        (
            lambda: YaRN(2.0, 64, attention_factor=0.0),
            r"YaRN with an attention_factor above 0.*\n  got: attention_factor=0.0\n  fix: pass None for",
        ),
        (lambda: Llama3(low=4.0, high=1.0), r"Llama3 with 0 < low < high\n  got: low=4.0, high=1.0"),
        (lambda: Llama3(factor=0.0), r"Llama3 with a factor"),
        (lambda: Llama3(trained_length=-1), r"Llama3 with the number of positions"),
        (lambda: LongRoPE((1.0,), (1.0,), 1), r"LongRoPE with the number .* at least 2\n  got: trained_length=1"),
        (lambda: LongRoPE((1.0,), (1.0,), 8, factor=0.1), r"LongRoPE with a factor"),
        (lambda: LongRoPE((1.0,), (1.0,), 8, attention_factor=-1.0), r"LongRoPE with an attention_factor"),
        (
            lambda: LongRoPE((1.0,), (1.0, 2.0), 8),
            r"LongRoPE with a divisor above 0.*\n  got: 1 short, 2 long, the least of them 1\n  fix: pass the model's",
        ),
        (lambda: LongRoPE((1.0, 0.0), (1.0, 2.0), 8), r"got: 2 short, 2 long, the least of them 0"),
        (
            lambda: LongRoPE((1.0, 2.0), (1.0, 2.0), 8).frequencies(10.0, 6),
            r"each of the 3 pairs of dim=6\n  got: 2 divisors\n  fix: pass 3 divisors, or rotate dim=4",
        ),
        (
            lambda: NTK(2.0).frequencies(10.0, 2),
            r"NTK scaling of at least 4 rotated dimensions.*\n  got: dim=2\n  fix: rotate more of the head",
        ),
        (lambda: DynamicNTK(2.0, 9).frequencies(10.0, 2), r"DynamicNTK scaling of at least 4"),
    ],
)
def test_bad_input(wrong, message):
    with pytest.raises(MultiheadError, match=message):
        wrong()
