"""Other tools that make a page out of attention, in an environment of their own."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PINS = ("bertviz==1.4.1", "inspectus==0.2.0", "circuitsvis==1.43.3")
"""Installed without what they declare: the pages of attention need torch and the next two packages only."""

NEEDED = ("ipython==9.18.1", "importlib_metadata==10.2.0")


def make(folder: Path, needed=NEEDED, pins=PINS) -> Path:
    """Make the environment, unless it is there; its torch and transformers are those of this interpreter.

    Args:
        folder: Where.
        needed: Packages, with what they declare.
        pins: Packages without it.

    Returns:
        Its Python.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    inside = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    # Its own packages come first, then those beside this interpreter's torch.
    # A folder that is added so has its own .pth files read: those of an editable install.
    (inside / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *needed], check=True)
    if pins:
        subprocess.run([*pip, "--no-deps", *pins], check=True)
    return python


def versions(python: Path) -> dict[str, str]:
    """Version of each tool in that environment."""
    names = [pin.partition("==")[0] for pin in PINS]
    ask = f"from importlib.metadata import version\nfor name in {names}: print(name, version(name))"
    told = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=False)
    if told.returncode:
        sys.exit(f"{python} lacks the tools: {told.stderr.strip().splitlines()[-1]}\nMake it with --make-peers FOLDER.")
    return dict(line.split() for line in told.stdout.splitlines())


def bertviz_head(attentions, tokens):
    from bertviz import head_view

    return head_view(attention=attentions, tokens=tokens, html_action="return").data


def bertviz_model(attentions, tokens):
    from bertviz import model_view

    return model_view(attention=attentions, tokens=tokens, html_action="return").data


def inspectus_page(attentions, tokens):
    """It can only show what it made: what it shows is caught."""
    import inspectus
    import IPython.display

    shown = []
    IPython.display.display = lambda html: shown.append(html.data)
    inspectus.attention(list(attentions), tokens)
    return "".join(shown)


def circuitsvis_layer(attentions, tokens):
    """One layer, as its function takes it; the version of the page that brings its script along."""
    from circuitsvis.attention import attention_heads

    return attention_heads(attention=attentions[0][0], tokens=tokens).local_src


PAGES = {
    "BertViz head_view": bertviz_head,
    "BertViz model_view": bertviz_model,
    "inspectus": inspectus_page,
    "CircuitsVis, one layer": circuitsvis_layer,
}
