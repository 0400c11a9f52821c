"""Running a plan and keeping what it measured."""
