"""Running measurements into the store: suites, benches, searches, calibrations."""
