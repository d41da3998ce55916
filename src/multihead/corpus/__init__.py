"""Texts, stimuli, packaged models and reactions with known atom maps: what a checkup reads."""

from multihead.corpus.classes import CLASSES, TokenClasses, token_classes
from multihead.corpus.packaged import (
    PACKAGED,
    InstalledModel,
    PackagedModel,
    find_packaged,
    install_packaged,
    is_installed,
)
from multihead.corpus.published import PUBLISHED
from multihead.corpus.reactions import Alignment, MappedReaction, align
from multihead.corpus.reading import Reading, Skipped, read_texts
from multihead.corpus.smiles import SmilesTokenizer, smiles_tokens
from multihead.corpus.stimulus import TokenRun, frame_of, ordinary_tokens, repeated_tokens
from multihead.corpus.text import Text, default_texts
from multihead.corpus.tokenizer import Tokenizer

__all__ = [
    "CLASSES",
    "PACKAGED",
    "PUBLISHED",
    "Alignment",
    "InstalledModel",
    "MappedReaction",
    "PackagedModel",
    "Reading",
    "Skipped",
    "SmilesTokenizer",
    "Text",
    "TokenClasses",
    "TokenRun",
    "Tokenizer",
    "align",
    "default_texts",
    "find_packaged",
    "frame_of",
    "install_packaged",
    "is_installed",
    "ordinary_tokens",
    "read_texts",
    "repeated_tokens",
    "smiles_tokens",
    "token_classes",
]
