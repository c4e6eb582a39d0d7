"""Numbers as people read them."""

import hashlib
import re

_THOUSANDS = ("", " k", " M", " G", " T", " P")
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def short_count(number: float) -> str:
    """Three figures and a unit.

    >>> short_count(161_242), short_count(9_990_000), short_count(12), short_count(999_999)
    ('161 k', '9.99 M', '12', '1 M')
    """
    power = 0
    while power < len(_THOUSANDS) - 1 and float(f"{number:.3g}") >= 1000:
        number, power = number / 1000, power + 1
    return f"{number:.3g}{_THOUSANDS[power]}"


def byte_size(bits: float) -> str:
    """
    >>> byte_size(8 * 4096), byte_size(80)
    ('4.0 KiB', '10 B')
    """
    size, power = bits / 8, 0
    while power < len(_BYTES) - 1 and size >= 1024:
        size, power = size / 1024, power + 1
    return f"{size:.0f} B" if power == 0 else f"{size:.1f} {_BYTES[power]}"


def duration(seconds: float) -> str:
    """
    >>> duration(7.25), duration(75), duration(7322)
    ('7.2 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def clock(seconds: float) -> str:
    """
    >>> clock(7.25), clock(75), clock(7322)
    ('0:07', '1:15', '2:02:02')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def roughly(seconds: float) -> str:
    """For what is only estimated.

    >>> roughly(2), roughly(44), roughly(130), roughly(5400), roughly(8000), roughly(200_000)
    ('10 s', '40 s', '2 min', '90 min', '2.2 h', '56 h')
    """
    if seconds < 95:
        return f"{max(round(seconds, -1), 10):.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"


def signed(value: float | None) -> str:
    """
    >>> signed(0.124)
    '+0.12'
    """
    return "" if value is None else f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


def several(number: int, noun: str) -> str:
    """
    >>> several(1, "run"), several(12, "run")
    ('1 run', '12 runs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def slug(text: str) -> str:
    """A short name for files and anchors; where characters are lost a digest tells names apart.

    >>> slug("wrn_28_2-cifar10"), slug("DSR, kernels")
    ('wrn-28-2-cifar10', 'dsr-kernels-ea2446')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    is_whole = plain == re.sub(r"[_ ]", "-", text.lower()) and len(plain) <= 60
    return plain if is_whole else f"{plain[:50].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
