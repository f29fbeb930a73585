SPECIAL: dict[str, tuple[float, ...]] = {}
