"""Is a fitted card worth its place? Cards of several methods beside their rivals, on the same held-out data."""
