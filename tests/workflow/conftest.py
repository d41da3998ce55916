from corpus.conftest import minilm

__all__ = ["minilm"]
