"""Makes drawings: plots, charts, badge and poster."""
