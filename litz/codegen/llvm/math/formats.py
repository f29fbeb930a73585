"""The two float formats, as the numbers that bit-level algorithms need.

In: a dtype name. Out: `FORMATS[name]`. Example: `FORMATS["f32"].bias` is 127.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """`mantissa` counts stored bits; `bias` is the exponent field of 1.0."""

    mantissa: int
    bias: int

    @property
    def magic(self) -> float:
        """Added to a small number, it shifts the fraction out: the sum's low bits are an integer.

        1.5 rather than 1, so that negative integers borrow from the fraction, not the exponent.
        """
        return 1.5 * 2.0**self.mantissa

    @property
    def least_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def negligible(self) -> float:
        """Below this, x + x^2 rounds to x."""
        return 2.0 ** -(self.mantissa + 2)

    @property
    def sign_bit(self) -> int:
        return 1 << (31 if self.mantissa == 23 else 63)


FORMATS: dict[str, Format] = {"f32": Format(23, 127), "f64": Format(52, 1023)}
