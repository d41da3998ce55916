"""Texts, pictures, recordings, stimuli, packaged models and reactions with known atom maps: what a checkup reads."""

from multihead.corpus.classes import CLASSES, TokenClasses, token_classes
from multihead.corpus.files import Files, Skipped
from multihead.corpus.packaged import (
    PACKAGED,
    InstalledModel,
    PackagedModel,
    find_packaged,
    install_packaged,
    is_installed,
)
from multihead.corpus.picture import Picture, grey_png, read_images, resize_pixels, small_png
from multihead.corpus.placing import place_tokens
from multihead.corpus.published import PUBLISHED
from multihead.corpus.reactions import Alignment, MappedReaction, align
from multihead.corpus.reading import Reading, read_texts
from multihead.corpus.smiles import SmilesTokenizer, smiles_tokens
from multihead.corpus.sound import Sound, read_sounds, resample
from multihead.corpus.splitting import LINE_ENDS, split_words
from multihead.corpus.stimulus import TokenRun, frame_of, ordinary_tokens, repeated_tokens
from multihead.corpus.text import Text, default_texts
from multihead.corpus.tokenizer import Tokenizer
from multihead.corpus.tokens import Script, Tokens, cut_text, read_script, tokenize
from multihead.corpus.words import KINDS, WordReader, Words, place_classes, shown, words_of

__all__ = [
    "CLASSES",
    "KINDS",
    "LINE_ENDS",
    "PACKAGED",
    "PUBLISHED",
    "Alignment",
    "Files",
    "InstalledModel",
    "MappedReaction",
    "PackagedModel",
    "Picture",
    "Reading",
    "Script",
    "Skipped",
    "SmilesTokenizer",
    "Sound",
    "Text",
    "TokenClasses",
    "TokenRun",
    "Tokenizer",
    "Tokens",
    "WordReader",
    "Words",
    "align",
    "cut_text",
    "default_texts",
    "find_packaged",
    "frame_of",
    "grey_png",
    "install_packaged",
    "is_installed",
    "ordinary_tokens",
    "place_classes",
    "place_tokens",
    "read_images",
    "read_script",
    "read_sounds",
    "read_texts",
    "repeated_tokens",
    "resample",
    "resize_pixels",
    "shown",
    "small_png",
    "smiles_tokens",
    "split_words",
    "token_classes",
    "tokenize",
    "words_of",
]
