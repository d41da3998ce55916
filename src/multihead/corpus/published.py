"""Atom maps published with RXNMapper (MIT licence, copyright 2020 RXN4Chemistry team)."""

from multihead.corpus.reactions import MappedReaction

_README = "RXNMapper 0.4.3, README (also in the package's metadata)"
_TESTS = "RXNMapper, tests/test_mapper.py of github.com/rxn4chemistry/rxnmapper"
_BATCHED = "RXNMapper, tests/test_batched_mapper.py of github.com/rxn4chemistry/rxnmapper"

PUBLISHED = (
    MappedReaction(
        name="thioether by aromatic substitution",
        mapped=(
            "[CH3:1][CH:2]([CH3:3])[SH:4].CN(C)C=O.F[c:5]1[n:6][cH:7][cH:8][cH:9][c:10]1[F:11].O=C([O-])[O-].[K+].[K+]"
            ">>[CH3:1][CH:2]([CH3:3])[S:4][c:5]1[n:6][cH:7][cH:8][cH:9][c:10]1[F:11]"
        ),
        source=_README,
    ),
    MappedReaction(
        name="acid from its tert-butyl ester",
        mapped=(
            "C1COCCO1.CC(C)(C)[O:3][C:2](=[O:1])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9][CH2:10][c:11]1[cH:12][cH:13]"
            "[cH:14][c:15]2[cH:16][cH:17][cH:18][cH:19][c:20]12.Cl"
            ">>[O:1]=[C:2]([OH:3])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9][CH2:10][c:11]1[cH:12][cH:13][cH:14][c:15]2"
            "[cH:16][cH:17][cH:18][cH:19][c:20]12"
        ),
        source=_README,
    ),
    MappedReaction(
        name="triazole from isothiocyanate, amine and hydrazide",
        mapped=(
            "S=[C:17]=[N:4][CH2:3][CH:2]=[CH2:1].[NH:18]([CH3:19])[CH2:20][c:21]1[cH:22][cH:23][c:24]([C:25]#[N:26])"
            "[cH:27][cH:28]1.O=[C:5]([c:6]1[cH:7][n:8]2[c:9]([n:10]1)[CH2:11][CH2:12][CH2:13][CH2:14]2)[NH:15][NH2:16]"
            ">>[CH2:1]=[CH:2][CH2:3][n:4]1[c:5](-[c:6]2[cH:7][n:8]3[c:9]([n:10]2)[CH2:11][CH2:12][CH2:13][CH2:14]3)"
            "[n:15][n:16][c:17]1[N:18]([CH3:19])[CH2:20][c:21]1[cH:22][cH:23][c:24]([C:25]#[N:26])[cH:27][cH:28]1"
        ),
        source=_TESTS,
    ),
    MappedReaction(
        name="diethyl ether from sodium ethoxide",
        mapped="Br[CH2:2][CH3:1].[Na+]~[O-:3][CH2:4][CH3:5].[H-]~[Na+]>>[CH3:1][CH2:2][O:3][CH2:4][CH3:5]",
        source=_TESTS,
    ),
    MappedReaction(
        name="diethyl ether from ethanol",
        mapped="[CH2:2]([CH3:1])[OH:3].Br[CH2:4][CH3:5]>>[CH3:1][CH2:2][O:3][CH2:4][CH3:5]",
        source=_TESTS,
    ),
    MappedReaction(
        name="2-ethoxyethylamine from sodium 2-aminoethoxide",
        mapped="[NH2:1][CH2:2][CH2:3][O-:4]~[Na+].Br[CH2:5][CH3:6]>>[NH2:1][CH2:2][CH2:3][O:4][CH2:5][CH3:6]",
        source=_BATCHED,
    ),
)
"""Every reaction that RXNMapper's README and tests map and whose map is chemically right, once each.

The maps are that program's answers, which it reads from head 5 of layer 10 with help from the neighbouring atoms; no
measurement of the atoms themselves stands behind them. They agree with the textbook course of each reaction: bonds
between kept atoms change at the reacting centre alone. Two published answers are left out because they do not: the
ether of sodium propoxide (it exchanges the two carbons of bromoethane) and the reverse of an ether synthesis (it leaves
sodium without an origin). Three others are the ethoxide and propoxide reactions in another notation.
"""
