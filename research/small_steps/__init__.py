"""Step-time ratios that CPUs have measured beside those that their operators foretell, and how far both agree."""
