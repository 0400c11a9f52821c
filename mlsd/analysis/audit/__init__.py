"""Whether a number can be true: rules asked of any row, ours or published."""
