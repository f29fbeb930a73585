BESSEL: dict[str, tuple[float, ...]] = {}
