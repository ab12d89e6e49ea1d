"""Many requests side by side: `schedule` computes them where `workers` are, `estimate` says how long that takes."""
