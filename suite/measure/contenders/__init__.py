"""Runs contenders: training runs in processes of their own, what starts them and what they answer."""
