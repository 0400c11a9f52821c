"""Methods that look proposals up in a text: no second model drafts."""
