"""Methods that draft with a trained head over the target's rows."""
