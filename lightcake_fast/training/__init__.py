"""Training: configuration, presets, the loop, and run folders that survive any stop."""
