"""From a profile to predictions, advice and a plan. Pure."""
