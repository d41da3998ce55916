import pytest
from transformers import AutoTokenizer

from multihead.corpus import SmilesTokenizer, find_packaged, is_installed


def _folder(name):
    if not is_installed(name):
        pytest.skip(f"the packaged model {name} is not installed: multihead models --get {name}")
    return find_packaged(name).path


@pytest.fixture(scope="session")
def minilm():
    return AutoTokenizer.from_pretrained(_folder("minilm"))


@pytest.fixture(scope="session")
def smollm2():
    folder = _folder("smollm2")
    return AutoTokenizer.from_pretrained(folder, gguf_file=find_packaged("smollm2").model.weights)


@pytest.fixture(scope="session")
def rxnmapper_folder():
    return _folder("rxnmapper")


@pytest.fixture(scope="session")
def smiles(rxnmapper_folder):
    return SmilesTokenizer.from_folder(rxnmapper_folder)
