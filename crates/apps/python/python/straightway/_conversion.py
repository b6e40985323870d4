"""The lossless conversions between dtypes. A restore makes no others without ``cast=True``."""

from __future__ import annotations

#: The exponent bits and the fraction bits of each float.
_FLOATS = {
    "F8_E5M2": (5, 2),
    "F8_E4M3": (4, 3),
    "F16": (5, 10),
    "BF16": (8, 7),
    "F32": (8, 23),
    "F64": (11, 52),
}


def is_lossless(saved: str, target: str) -> bool:
    """Whether every value of the saved dtype can be represented in the target dtype."""
    if saved == target or saved == "BOOL":
        return True
    if saved in _FLOATS:
        into = _FLOATS["F32"] if target == "C64" else _FLOATS.get(target)
        return into is not None and all(a <= b for a, b in zip(_FLOATS[saved], into))
    kind, width = saved[0], saved[1:]
    if kind not in "IU" or not width.isdigit():
        return False
    # Bits without the sign bit.
    digits = int(width) - (kind == "I")
    if target[0] in "IU" and target[1:].isdigit():
        return digits <= int(target[1:]) - (target[0] == "I") and (kind == "U" or target[0] == "I")
    # A float has one bit of precision more than its fraction, and its exponent must reach the largest value.
    into = _FLOATS["F32"] if target == "C64" else _FLOATS.get(target)
    return into is not None and digits <= into[1] + 1 and digits < 1 << (into[0] - 1)
