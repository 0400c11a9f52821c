"""Figures and pages made from analysed results."""
