"""From stored trials to metrics, cost models, fits and verdicts."""
