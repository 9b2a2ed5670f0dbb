"""Over what it moves: clusters as data, routes, presets, imports, lints."""
