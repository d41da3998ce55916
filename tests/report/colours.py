"""How far apart colours are for eyes that see three, or two, primaries: the slow plain way."""

import math
import re

import numpy as np

# Machado, Oliveira & Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# IEEE Transactions on Visualization and Computer Graphics 15 (6), 2009: matrices for linear RGB, severity 1.0.
SIGHT = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
WHITE = (0.95047, 1.0, 1.08883)


def lab(colour, sight="usual"):
    """CIELAB of `#rrggbb` as such eyes see it, D65."""
    coded = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SIGHT[sight]) @ linear, 0, 1)
    x, y, z = (
        v ** (1 / 3) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116 for v in (np.array(TO_XYZ) @ seen) / WHITE
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one, other):
    """Sharma, Wu & Dalal, "The CIEDE2000 Color-Difference Formula", Color Research & Application 30 (1), 2005."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean**7 / (mean**7 + 25**7)))
    (c1, h1), (c2, h2) = (
        (math.hypot((1 + g) * a, b), math.degrees(math.atan2(b, (1 + g) * a)) % 360) for a, b in ((a1, b1), (a2, b2))
    )
    grey = c1 * c2 == 0
    turn = 0 if grey else (h2 - h1 + 180) % 360 - 180
    if grey:
        h = h1 + h2
    elif abs(h1 - h2) <= 180:
        h = (h1 + h2) / 2
    else:
        h = (h1 + h2 + (360 if h1 + h2 < 360 else -360)) / 2
    light, c = (l1 + l2) / 2, (c1 + c2) / 2

    def cos(degrees):
        return math.cos(math.radians(degrees))

    t = 1 - 0.17 * cos(h - 30) + 0.24 * cos(2 * h) + 0.32 * cos(3 * h + 6) - 0.2 * cos(4 * h - 63)
    dl = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2))
    dc = (c2 - c1) / (1 + 0.045 * c)
    dh = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2)) / (1 + 0.015 * c * t)
    bend = math.sin(math.radians(60 * math.exp(-(((h - 275) / 25) ** 2)))) * 2 * math.sqrt(c**7 / (c**7 + 25**7))
    return math.sqrt(dl**2 + dc**2 + dh**2 - bend * dc * dh)


def grounds(style, theme):
    """The ground of every role in a style sheet, by role; what borrows another's colour is looked up."""
    told = dict(re.findall(r"--(\w+)-bg:(light-dark\([^)]*\)|var\([^)]*\))", style))
    plain = {key: re.findall("#[0-9a-f]{6}", value) for key, value in told.items()}
    place = ("light", "dark").index(theme)
    borrowed = {key: value[6:-4] for key, value in told.items() if value.startswith("var")}
    return {key: plain[borrowed.get(key, key)][place] for key in told}
