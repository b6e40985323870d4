"""Which elements become which without a loss: a restore converts no others unless it is told to."""

from __future__ import annotations

#: The bits of each float: of its exponent, and of its fraction.
_FLOATS = {
    "F8_E5M2": (5, 2),
    "F8_E4M3": (4, 3),
    "F16": (5, 10),
    "BF16": (8, 7),
    "F32": (8, 23),
    "F64": (11, 52),
}


def is_lossless(saved: str, target: str) -> bool:
    """Whether every value of one type of a safetensors file is a value of another."""
    if saved == target or saved == "BOOL":
        return True
    if saved in _FLOATS:
        into = _FLOATS["F32"] if target == "C64" else _FLOATS.get(target)
        return into is not None and all(a <= b for a, b in zip(_FLOATS[saved], into))
    kind, width = saved[0], saved[1:]
    if kind not in "IU" or not width.isdigit():
        return False
    # Digits without the sign.
    digits = int(width) - (kind == "I")
    if target[0] in "IU" and target[1:].isdigit():
        return digits <= int(target[1:]) - (target[0] == "I") and (kind == "U" or target[0] == "I")
    # A float has one digit more than its fraction, and the largest value must be within its exponent.
    into = _FLOATS["F32"] if target == "C64" else _FLOATS.get(target)
    return into is not None and digits <= into[1] + 1 and digits < 1 << (into[0] - 1)
