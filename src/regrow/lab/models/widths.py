"""How a hidden size shrinks when a network is made thin."""


def scaled(num_channels: int, width: float, multiple_of: int = 1) -> int:
    """The hidden size at a width multiplier, in whole channels (or whole multiples of so many) and never none.

    >>> scaled(300, 1.0), scaled(300, 0.1), scaled(16, 0.01), scaled(512, 0.36, multiple_of=8)
    (300, 30, 1, 184)
    """
    if not width > 0:
        raise ValueError(f"width must be positive, got {width}; 1.0 is the full network, 0.5 half of its channels")
    return max(1, round(num_channels * width / multiple_of)) * multiple_of
