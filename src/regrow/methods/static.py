"""Static sparse: positions drawn once and kept; the baseline that shows what rewiring is worth."""

from typing import ClassVar

from regrow.methods.method import Method, method


@method
class Static(Method):
    """A fixed topology."""

    rewires: ClassVar[bool] = False
