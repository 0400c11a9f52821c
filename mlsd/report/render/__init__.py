"""The values a report is made of, and the forms they take."""
