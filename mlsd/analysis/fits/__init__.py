"""Models of cost fitted to measurements: T(k), speedup formulas, bandwidth; with intervals and errors of prediction."""
